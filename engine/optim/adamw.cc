#include "engine/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
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

// fp64, over all ranks of the job: finite exactly when every gradient and every loss is.
at::Tensor AdamW::SquaredNorm(const at::Tensor& loss_sum) const {
  at::Tensor sum = at::zeros({}, updates_.options().dtype(at::kDouble));
  for (const parallel::Bucket& bucket : store_.buckets()) {
    if (!bucket.trainable) continue;
    for (const parallel::ElementRange& range : bucket.counted) {
      sum.add_(ops::SumSquares(bucket.main_grads.narrow(0, range.begin, range.size())));
    }
  }
  if (loss_sum.defined()) sum.add_(loss_sum - loss_sum);  // 0, or NaN when the loss is not finite
  groups_.world->AllReduce(sum, comm::ReduceOp::kSum)->Wait();
  return sum;
}

StepOutcome AdamW::Step(double learning_rate, const at::Tensor& loss_sum) {
  at::NoGradGuard no_grad;
  const at::Tensor squared = SquaredNorm(loss_sum);
  const at::Tensor norm = squared.sqrt().to(at::kFloat);
  const at::Tensor skip = at::isfinite(squared).logical_not().to(at::kFloat);
  const at::Tensor scale = options_.max_grad_norm > 0
                               ? (norm + kClipEpsilon).reciprocal().mul_(options_.max_grad_norm).clamp_max_(1.0)
                               : at::ones_like(norm);
  const at::Tensor update = updates_ + 1.0;
  const bool separate_weights = store_.options().compute_dtype != at::kFloat;
  for (size_t b = 0; b < store_.buckets().size(); ++b) {
    const parallel::Bucket& bucket = store_.buckets()[b];
    if (!bucket.trainable) continue;
    if (listener_ != nullptr) listener_->BeforeUpdate(static_cast<int>(b));
    ops::AdamW(bucket.master, bucket.exp_avg, bucket.exp_avg_sq, bucket.grad_slice(),
               separate_weights ? std::optional<at::Tensor>(bucket.weight_slice()) : std::nullopt, update, scale, skip,
               learning_rate, options_.beta1, options_.beta2, options_.epsilon,
               bucket.weight_decay ? options_.weight_decay : 0.0);
  }
  updates_.add_(1.0 - skip);
  store_.GatherWeights();
  return {norm, skip};
}

}  // namespace slipway::engine::optim
