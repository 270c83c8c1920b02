#include "engine/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "engine/ops/ops.h"

namespace slipway::engine::optim {
namespace {

constexpr double kClipEpsilon = 1e-6;

}  // namespace

AdamW::AdamW(parallel::FlatStore& store, const comm::ParallelGroups& groups, const AdamWOptions& options)
    : store_(store),
      groups_(groups),
      options_(options),
      updates_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(store.options().device))) {}

void AdamW::SetUpdates(int64_t updates) {
  at::NoGradGuard no_grad;
  updates_.fill_(static_cast<double>(updates));
}

// fp64 [2] over all ranks of the job: Σ squares of the gradients, finite exactly when every gradient and every loss is;
// and, where it is asked for, the number of gradients that are zero.
at::Tensor AdamW::SumOverRanks(const at::Tensor& loss_sum) const {
  at::Tensor sums = at::zeros({2}, updates_.options().dtype(at::kDouble));
  at::Tensor squares = sums[0], zeros = sums[1];
  for (const parallel::Bucket& bucket : store_.buckets()) {
    if (!bucket.trainable) continue;
    const at::Tensor grads = bucket.grad_slice();
    for (const arch::ElementRange& range : bucket.counted) {
      const at::Tensor part = grads.narrow(0, range.begin, range.size());
      squares.add_(ops::SumSquares(part));
      if (options_.count_zeros) zeros.add_((part == 0).sum());
    }
    if (options_.count_zeros) zeros.sub_(static_cast<double>(bucket.counted_gaps));
  }
  if (loss_sum.defined()) squares.add_(loss_sum - loss_sum);  // 0, or NaN when the loss is not finite
  groups_.world->AllReduce(sums, comm::ReduceOp::kSum)->Wait();
  return sums;
}

at::Tensor AdamW::ParamsNorm() const {
  at::Tensor sum = at::zeros({}, updates_.options().dtype(at::kDouble));
  for (const parallel::Bucket& bucket : store_.buckets()) {
    const at::Tensor weights = bucket.trainable ? bucket.master : bucket.weight_slice();
    for (const arch::ElementRange& range : bucket.counted) {
      sum.add_(ops::SumSquares(weights.narrow(0, range.begin, range.size()).to(at::kFloat)));
    }
  }
  groups_.world->AllReduce(sum, comm::ReduceOp::kSum)->Wait();
  return sum.sqrt();
}

StepOutcome AdamW::Step(double learning_rate, const at::Tensor& loss_sum) {
  at::NoGradGuard no_grad;
  const at::Tensor sums = SumOverRanks(loss_sum);
  const at::Tensor squared = sums[0];
  const at::Tensor norm = squared.sqrt().to(at::kFloat);
  const at::Tensor skip = at::isfinite(squared).logical_not().to(at::kFloat);
  const at::Tensor scale = options_.max_grad_norm > 0
                               ? (norm + kClipEpsilon).reciprocal().mul_(options_.max_grad_norm).clamp_max_(1.0)
                               : at::ones_like(norm);
  const at::Tensor update = updates_ + 1.0;
  for (size_t b = 0; b < store_.buckets().size(); ++b) {
    const parallel::Bucket& bucket = store_.buckets()[b];
    if (!bucket.trainable) continue;
    if (listener_ != nullptr) listener_->BeforeUpdate(static_cast<int>(b));
    if (bucket.sign_update_rate > 0) {
      bucket.master.sub_(at::sign(bucket.grad_slice()).mul_(bucket.sign_update_rate).mul_(1.0 - skip));
      continue;
    }
    const bool separate_weights = bucket.weights.scalar_type() != at::kFloat;
    const at::Tensor grads = bucket.grad_slice(), weights = bucket.weight_slice();
    const auto update_run = [&](int64_t begin, int64_t end, double weight_decay) {
      if (begin == end) return;
      const auto part = [&](const at::Tensor& slice) { return slice.narrow(0, begin, end - begin); };
      ops::AdamW(part(bucket.master), part(bucket.exp_avg), part(bucket.exp_avg_sq), part(grads),
                 separate_weights ? std::optional<at::Tensor>(part(weights)) : std::nullopt, update, scale, skip,
                 learning_rate, options_.beta1, options_.beta2, options_.epsilon, weight_decay);
    };
    update_run(0, bucket.decay_elements, options_.weight_decay);
    update_run(bucket.decay_elements, bucket.shard_elements, 0.0);
  }
  updates_.add_(1.0 - skip);
  StepOutcome outcome{.grad_norm = norm, .skipped = skip};
  if (options_.count_zeros) outcome.num_zeros = sums[1];
  if (options_.params_norm) outcome.params_norm = ParamsNorm();
  store_.GatherWeights();
  return outcome;
}

}  // namespace slipway::engine::optim
