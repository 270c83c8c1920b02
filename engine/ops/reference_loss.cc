// Reference embedding, output layer, loss, weight gradients and optimizer.
#include <ATen/ATen.h>

#include <limits>

#include "engine/ops/reference.h"

namespace slipway::engine::ops::reference {

at::Tensor Embedding(const at::Tensor& weight, const at::Tensor& ids, int64_t first_row) {
  const at::Tensor local = ids - first_row;
  const at::Tensor elsewhere = at::logical_or(local < 0, local >= weight.size(0));
  return at::index_select(weight, 0, local.masked_fill(elsewhere, 0)).masked_fill_(elsewhere.unsqueeze(1), 0);
}

void EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, int64_t first_row, at::Tensor weight_grad,
                       bool accumulate) {
  if (!accumulate) weight_grad.zero_();
  const at::Tensor local = ids - first_row;
  const at::Tensor elsewhere = at::logical_or(local < 0, local >= weight_grad.size(0));
  const at::Tensor rows = dy.to(weight_grad.scalar_type()).masked_fill(elsewhere.unsqueeze(1), 0);
  weight_grad.index_add_(0, local.masked_fill(elsewhere, 0), rows);
}

at::Tensor Logits(const at::Tensor& x, const at::Tensor& weight) {
  const at::ScalarType type = StatisticsType(x);
  return at::matmul(x.to(type), weight.to(type).t());
}

std::tuple<at::Tensor, at::Tensor> CrossEntropy(const at::Tensor& logits, const at::Tensor& labels, int64_t first_row) {
  if (logits.size(1) == 0) {
    const at::Tensor target = at::zeros({logits.size(0)}, logits.options());
    return {at::full_like(target, -std::numeric_limits<double>::infinity()), target};
  }
  const at::Tensor local = labels - first_row;
  const at::Tensor elsewhere = at::logical_or(local < 0, local >= logits.size(1));
  at::Tensor target = at::gather(logits, 1, local.masked_fill(elsewhere, 0).unsqueeze(1)).squeeze(1);
  target.masked_fill_(elsewhere, 0);
  return {at::logsumexp(logits, {1}), std::move(target)};
}

at::Tensor CrossEntropyBackward(at::Tensor logits, const at::Tensor& labels, const at::Tensor& lse,
                                const at::Tensor& scale, int64_t first_row, at::ScalarType dtype) {
  if (logits.size(1) == 0) return logits.to(dtype);
  const at::Tensor local = labels - first_row;
  const at::Tensor elsewhere = at::logical_or(local < 0, local >= logits.size(1));
  logits.sub_(lse.unsqueeze(1)).exp_();
  logits.scatter_add_(1, local.masked_fill(elsewhere, 0).unsqueeze(1),
                      elsewhere.to(logits.scalar_type()).sub_(1).unsqueeze(1));
  logits.mul_(scale.unsqueeze(1)).masked_fill_((scale == 0).unsqueeze(1), 0);
  return logits.to(dtype);
}

void MmAccumulate(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  const at::ScalarType type = main_grad.scalar_type();
  main_grad.addmm_(dy.to(type).t(), x.to(type), /*beta=*/accumulate ? 1 : 0, /*alpha=*/1);
}

void BiasGradAccumulate(at::Tensor main_grad, const at::Tensor& dy, bool accumulate) {
  const at::Tensor sum = dy.sum(0, /*keepdim=*/false, main_grad.scalar_type());
  if (accumulate) {
    main_grad.add_(sum);
  } else {
    main_grad.copy_(sum);
  }
}

at::Tensor SumSquares(const at::Tensor& x) { return x.to(at::kDouble).square().sum(); }

void AdamW(at::Tensor master, at::Tensor exp_avg, at::Tensor exp_avg_sq, const at::Tensor& grad,
           const OptionalTensor& weights, const at::Tensor& t, const at::Tensor& grad_scale, const at::Tensor& skip,
           double lr, double beta1, double beta2, double eps, double weight_decay) {
  const at::Tensor g = grad * grad_scale;
  const at::Tensor m = exp_avg + (g - exp_avg) * (1 - beta1);
  const at::Tensor v = exp_avg_sq * beta2 + g * g * (1 - beta2);
  const at::Tensor step = t.to(at::kDouble);
  const at::Tensor step_size = (lr / (1 - at::pow(beta1, step))).to(master.scalar_type());
  const at::Tensor correction = (1 - at::pow(beta2, step)).sqrt().to(master.scalar_type());
  const at::Tensor updated = master * (1 - lr * weight_decay) - step_size * m / (v.sqrt() / correction + eps);
  const at::Tensor skipped = skip != 0;
  exp_avg.copy_(at::where(skipped, exp_avg, m));
  exp_avg_sq.copy_(at::where(skipped, exp_avg_sq, v));
  master.copy_(at::where(skipped, master, updated));
  if (weights.has_value()) weights->copy_(at::where(skipped, weights->to(master.scalar_type()), master));
}

}  // namespace slipway::engine::ops::reference
