// Embedding gradient, sum of squares and AdamW on the CPU, each in one pass.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "engine/ops/cpu_kernels.h"
#include "engine/ops/cpu_loops.h"
#include "engine/ops/reference.h"

namespace slipway::engine::ops::cpu {
namespace {

constexpr int64_t kGrain = 32768;     // elements for which another thread is worth waking
constexpr int64_t kSumBlock = 65536;  // fixed, so that the order of summation does not depend on the threads

bool IsFloat(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.is_contiguous(); }

}  // namespace

void EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, int64_t first_row, at::Tensor weight_grad,
                       bool accumulate) {
  if (!IsFloat(weight_grad)) return reference::EmbeddingBackward(dy, ids, first_row, weight_grad, accumulate);
  if (!accumulate) weight_grad.zero_();
  const at::Tensor wide = dy.to(at::kFloat).contiguous();
  const int64_t tokens = ids.size(0), rows = weight_grad.size(0), columns = weight_grad.size(1);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const float* from = wide.const_data_ptr<float>();
  float* to = weight_grad.mutable_data_ptr<float>();
  // Each thread owns a band of columns and walks the tokens in order: no two threads meet in a row.
  const int64_t grain = std::max<int64_t>(64, kGrain / std::max<int64_t>(tokens, 1));
  at::parallel_for(0, columns, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = id[t] - first_row;
      if (row < 0 || row >= rows) continue;
      loops::Add(to + row * columns + begin, from + t * columns + begin, end - begin);
    }
  });
}

at::Tensor SumSquares(const at::Tensor& x) {
  if (!IsFloat(x)) return reference::SumSquares(x);
  const int64_t count = x.numel(), blocks = (count + kSumBlock - 1) / kSumBlock;
  const float* data = x.const_data_ptr<float>();
  std::vector<double> partial(blocks);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      partial[b] = loops::SumSquares(data + b * kSumBlock, std::min(kSumBlock, count - b * kSumBlock));
    }
  });
  double sum = 0;
  for (const double value : partial) sum += value;
  return at::scalar_tensor(sum, at::kDouble);
}

void AdamW(at::Tensor master, at::Tensor exp_avg, at::Tensor exp_avg_sq, const at::Tensor& grad,
           const OptionalTensor& weights, const at::Tensor& t, const at::Tensor& grad_scale, const at::Tensor& skip,
           double lr, double beta1, double beta2, double eps, double weight_decay) {
  const bool plain = IsFloat(master) && IsFloat(exp_avg) && IsFloat(exp_avg_sq) && IsFloat(grad) &&
                     (!weights.has_value() || (weights->scalar_type() == at::kBFloat16 && weights->is_contiguous()));
  if (!plain) {
    return reference::AdamW(master, exp_avg, exp_avg_sq, grad, weights, t, grad_scale, skip, lr, beta1, beta2, eps,
                            weight_decay);
  }
  if (skip.item<float>() != 0) return;
  const double step = t.item<double>();
  const loops::AdamWScalars scalars{
      .grad_scale = grad_scale.item<float>(),
      .one_minus_beta1 = static_cast<float>(1 - beta1),
      .beta2 = static_cast<float>(beta2),
      .one_minus_beta2 = static_cast<float>(1 - beta2),
      .decay = static_cast<float>(1 - lr * weight_decay),
      .step_size = static_cast<float>(lr / (1 - std::pow(beta1, step))),
      .root_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, step))),
      .eps = static_cast<float>(eps),
  };
  float* p = master.mutable_data_ptr<float>();
  float* m = exp_avg.mutable_data_ptr<float>();
  float* v = exp_avg_sq.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  auto* w = weights.has_value() ? reinterpret_cast<uint16_t*>(weights->mutable_data_ptr<at::BFloat16>()) : nullptr;
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    loops::AdamW(p + begin, m + begin, v + begin, g + begin, end - begin, scalars);
    if (w != nullptr) loops::RoundToBFloat16(p + begin, w + begin, end - begin);
  });
}

}  // namespace slipway::engine::ops::cpu
