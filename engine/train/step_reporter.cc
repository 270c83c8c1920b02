#include "engine/train/step_reporter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/timestamp.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/train/guarded_call.h"

namespace slipway::engine::train {

double WithPlainNan(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

at::Tensor StepReporter::SumOverRanks(const at::Tensor& loss_sum, int64_t tokens, const comm::ParallelGroups& groups,
                                      at::Device device) {
  at::Tensor sums = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device));
  if (loss_sum.defined()) sums[0].copy_(loss_sum.detach());
  // Every stage of a pipeline reads the same samples: they are counted where the loss is.
  if (groups.pp->rank() == groups.pp->size() - 1) sums[1].fill_(static_cast<double>(tokens));
  return parallel::SumOverReplicasAndStages(sums, groups);
}

namespace {

// From the table [layers, E + 3] of a step: see nn::RoutingStatistics.
v1::RoutingMetrics RoutingOf(const at::Tensor& on_device, int64_t samples) {
  const at::Tensor table = on_device.cpu();
  const int64_t experts = table.size(1) - 3;
  const at::Tensor counts = table.narrow(1, 0, experts);
  const at::Tensor with_experts = counts.index_select(0, at::nonzero(counts.sum(1)).squeeze(1));
  const at::Tensor others = table.narrow(1, experts, 3).sum(0);
  v1::RoutingMetrics metrics;
  metrics.set_dropped_tokens(others[0].item<int64_t>());
  metrics.set_load_balancing_loss(others[1].item<double>() / static_cast<double>(samples));
  metrics.set_z_loss(others[2].item<double>() / static_cast<double>(samples));
  if (with_experts.numel() == 0) return metrics;
  metrics.set_max_tokens_per_expert(with_experts.max().item<int64_t>());
  metrics.set_min_tokens_per_expert(with_experts.min().item<int64_t>());
  metrics.set_max_load((with_experts / with_experts.mean(1, /*keepdim=*/true)).max().item<double>());
  return metrics;
}

}  // namespace

absl::Status StepReporter::Launched(LaunchedStep step) {
  std::optional<LaunchedStep> readable = std::exchange(pending_, std::nullopt);
  if (step.sums.is_cpu()) {
    readable = std::move(step);
  } else {
    pending_ = std::move(step);
  }
  return readable.has_value() ? Read(*readable) : absl::OkStatus();
}

absl::Status StepReporter::Flush() {
  if (!pending_.has_value()) return absl::OkStatus();
  return Read(*std::exchange(pending_, std::nullopt));
}

absl::Status StepReporter::Read(const LaunchedStep& step) {
  const at::Tensor sums = step.sums.cpu();
  const bool skipped = step.outcome.skipped.item<float>() != 0.f;
  const int64_t tokens = static_cast<int64_t>(sums[1].item<double>());
  state_.consumed_tokens += tokens;
  state_.skipped_steps += skipped ? 1 : 0;
  state_.consecutive_skipped = skipped ? state_.consecutive_skipped + 1 : 0;

  const absl::Duration now = clock_.MonotonicNow();
  // Steps overlap by one on a GPU: a step takes the time since the one before was read.
  const double seconds = std::max(absl::ToDoubleSeconds(now - std::max(step.started, last_read_)), 1e-9);
  last_read_ = now;
  v1::StepMetrics metrics;
  metrics.set_step(step.step);
  metrics.set_loss(WithPlainNan(sums[0].item<double>() / step.total_weight));
  metrics.set_learning_rate(step.learning_rate);
  metrics.set_grad_norm(WithPlainNan(step.outcome.grad_norm.item<float>()));
  if (step.outcome.num_zeros.defined())
    metrics.set_num_zeros(static_cast<int64_t>(step.outcome.num_zeros.item<double>()));
  if (step.outcome.params_norm.defined()) {
    metrics.set_params_norm(WithPlainNan(step.outcome.params_norm.item<double>()));
  }
  metrics.set_loss_tokens(static_cast<int64_t>(step.total_weight));
  metrics.set_tokens(tokens);
  metrics.set_step_seconds(seconds);
  metrics.set_tokens_per_second(static_cast<double>(tokens) / seconds);
  metrics.set_model_flops_per_second(options_.flops_per_token * static_cast<double>(tokens) / seconds);
  if (options_.peak_flops_per_second > 0)
    metrics.set_mfu(metrics.model_flops_per_second() / options_.peak_flops_per_second);
  metrics.set_consumed_samples(step.consumed_samples);
  metrics.set_consumed_tokens(state_.consumed_tokens);
  metrics.set_skipped(skipped);
  metrics.set_skipped_total(state_.skipped_steps);
  metrics.set_epoch(options_.epoch);
  metrics.set_data_wait_seconds(absl::ToDoubleSeconds(step.data_wait));
  if (step.routing.defined() && options_.reports) {
    *metrics.mutable_routing() = RoutingOf(step.routing, options_.global_batch_size);
  }
  *metrics.mutable_time() = ToTimestamp(clock_.WallNow());
  observer_.StepDone(step.step);
  if (options_.reports && (step.step % options_.log_interval == 0 || skipped)) observer_.Metrics(metrics);

  if (state_.consecutive_skipped >= options_.max_consecutive_nonfinite) {
    return WithCause(
        absl::AbortedError(StrCat("the loss or a gradient was not finite in ", state_.consecutive_skipped,
                                  " steps in a row, up to step ", step.step, " (loss ", metrics.loss(),
                                  ", gradient norm ", metrics.grad_norm(), "); the weights are those of step ",
                                  step.step - state_.consecutive_skipped)),
        "NUMERIC");
  }
  return absl::OkStatus();
}

}  // namespace slipway::engine::train
