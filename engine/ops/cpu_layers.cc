// Norms, rotary embedding, SwiGLU and cross-entropy on the CPU in fp32, each in as few passes as it takes. Other types
// run the reference.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/ops/cpu_kernels.h"
#include "engine/ops/cpu_loops.h"
#include "engine/ops/reference.h"

namespace slipway::engine::ops::cpu {
namespace {

constexpr int64_t kGrain = 32768;  // elements for which another thread is worth waking

template <typename... Tensors>
bool AllPlainFloat(const Tensors&... tensors) {
  return ((tensors.scalar_type() == at::kFloat && tensors.is_contiguous()) && ...);
}

// Calls body(row) for all rows of `width` elements, in parallel.
template <typename Body>
void ForEachRow(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) body(row);
                   });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!AllPlainFloat(x, weight)) return reference::RmsNorm(x, weight, eps);
  const int64_t rows = x.size(0), width = x.size(1);
  at::Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options());
  const float *in = x.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
  float *out = y.mutable_data_ptr<float>(), *r = rstd.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t t) {
    r[t] = loops::RmsNorm(in + t * width, w, out + t * width, width, static_cast<float>(eps));
  });
  return {std::move(y), std::move(rstd)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& residual, const at::Tensor& y,
                                                          const at::Tensor& weight, double eps) {
  if (!AllPlainFloat(residual, y, weight)) return reference::AddRmsNorm(residual, y, weight, eps);
  const int64_t rows = residual.size(0), width = residual.size(1);
  at::Tensor sum = at::empty_like(residual), normed = at::empty_like(residual);
  at::Tensor rstd = at::empty({rows}, residual.options());
  const float *a = residual.const_data_ptr<float>(), *b = y.const_data_ptr<float>();
  const float* w = weight.const_data_ptr<float>();
  float *s = sum.mutable_data_ptr<float>(), *out = normed.mutable_data_ptr<float>();
  float* r = rstd.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t t) {
    loops::Sum(a + t * width, b + t * width, s + t * width, width);
    r[t] = loops::RmsNorm(s + t * width, w, out + t * width, width, static_cast<float>(eps));
  });
  return {std::move(sum), std::move(normed), std::move(rstd)};
}

at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                           const OptionalTensor& residual_grad, const OptionalTensor& weight_grad, bool accumulate) {
  if (!AllPlainFloat(dy, x, weight, rstd) || (residual_grad.has_value() && !AllPlainFloat(*residual_grad)) ||
      (weight_grad.has_value() && !AllPlainFloat(*weight_grad))) {
    return reference::RmsNormBackward(dy, x, weight, rstd, residual_grad, weight_grad, accumulate);
  }
  const int64_t rows = x.size(0), width = x.size(1);
  at::Tensor dx = at::empty_like(x);
  const float *d = dy.const_data_ptr<float>(), *in = x.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
  const float* r = rstd.const_data_ptr<float>();
  const float* residual = residual_grad.has_value() ? residual_grad->const_data_ptr<float>() : nullptr;
  float* out = dx.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t t) {
    loops::RmsNormBackward(d + t * width, in + t * width, w, r[t], residual == nullptr ? nullptr : residual + t * width,
                           out + t * width, width);
  });
  if (!weight_grad.has_value()) return dx;
  float* dw = weight_grad->mutable_data_ptr<float>();
  // Bands of columns, tokens in order: the sum does not depend on the threads.
  at::parallel_for(0, width, std::max<int64_t>(64, kGrain / std::max<int64_t>(rows, 1)),
                   [&](int64_t begin, int64_t end) {
                     if (!accumulate) std::fill(dw + begin, dw + end, 0.0f);
                     for (int64_t t = 0; t < rows; ++t) {
                       loops::AddProduct(dw + begin, d + t * width + begin, in + t * width + begin, r[t], end - begin);
                     }
                   });
  return dx;
}

void Rope(at::Tensor qkv, const at::Tensor& positions, const at::Tensor& inverse_frequencies, int64_t heads,
          int64_t groups, bool inverse) {
  if (!AllPlainFloat(qkv, inverse_frequencies)) {
    return reference::Rope(qkv, positions, inverse_frequencies, heads, groups, inverse);
  }
  const int64_t half = inverse_frequencies.size(0), width = qkv.size(1);
  TORCH_CHECK(width == (heads + 2 * groups) * 2 * half, "qkv of shape ", qkv.sizes(), " does not hold ", heads,
              " query and 2 × ", groups, " key/value heads of ", 2 * half);
  const float* frequency = inverse_frequencies.const_data_ptr<float>();
  const int64_t* position = positions.const_data_ptr<int64_t>();
  float* data = qkv.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrain / width);
  at::parallel_for(0, qkv.size(0), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> cos(half), sin(half);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position[t]) * frequency[i];
        cos[i] = std::cos(angle);
        sin[i] = inverse ? -std::sin(angle) : std::sin(angle);
      }
      for (int64_t head = 0; head < heads + groups; ++head) {
        loops::Rotate(data + t * width + head * 2 * half, cos.data(), sin.data(), half);
      }
    }
  });
}

at::Tensor SwiGlu(const at::Tensor& gate_up) {
  if (!AllPlainFloat(gate_up)) return reference::SwiGlu(gate_up);
  const int64_t rows = gate_up.size(0), inner = gate_up.size(1) / 2;
  at::Tensor y = at::empty({rows, inner}, gate_up.options());
  const float* in = gate_up.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  ForEachRow(rows, inner,
             [&](int64_t t) { loops::SwiGlu(in + t * 2 * inner, in + t * 2 * inner + inner, out + t * inner, inner); });
  return y;
}

at::Tensor SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up) {
  if (!AllPlainFloat(dy, gate_up)) return reference::SwiGluBackward(dy, gate_up);
  const int64_t rows = gate_up.size(0), inner = gate_up.size(1) / 2;
  at::Tensor d_gate_up = at::empty_like(gate_up);
  const float *d = dy.const_data_ptr<float>(), *in = gate_up.const_data_ptr<float>();
  float* out = d_gate_up.mutable_data_ptr<float>();
  ForEachRow(rows, inner, [&](int64_t t) {
    const int64_t gate = t * 2 * inner, up = gate + inner;
    loops::SwiGluBackward(d + t * inner, in + gate, in + up, out + gate, out + up, inner);
  });
  return d_gate_up;
}

std::tuple<at::Tensor, at::Tensor> CrossEntropy(const at::Tensor& logits, const at::Tensor& labels, int64_t first_row) {
  if (!AllPlainFloat(logits)) return reference::CrossEntropy(logits, labels, first_row);
  const int64_t rows = logits.size(0), columns = logits.size(1);
  at::Tensor lse = at::empty({rows}, logits.options()), target = at::empty({rows}, logits.options());
  const float* in = logits.const_data_ptr<float>();
  const int64_t* label = labels.const_data_ptr<int64_t>();
  float *l = lse.mutable_data_ptr<float>(), *to = target.mutable_data_ptr<float>();
  ForEachRow(rows, columns, [&](int64_t t) {
    const int64_t column = label[t] - first_row;
    l[t] = columns == 0 ? -INFINITY : loops::LogSumExp(in + t * columns, columns);
    to[t] = column >= 0 && column < columns ? in[t * columns + column] : 0.0f;
  });
  return {std::move(lse), std::move(target)};
}

at::Tensor CrossEntropyBackward(at::Tensor logits, const at::Tensor& labels, const at::Tensor& lse,
                                const at::Tensor& scale, int64_t first_row, at::ScalarType dtype) {
  if (!AllPlainFloat(logits, lse, scale)) {
    return reference::CrossEntropyBackward(logits, labels, lse, scale, first_row, dtype);
  }
  const int64_t rows = logits.size(0), columns = logits.size(1);
  const int64_t* label = labels.const_data_ptr<int64_t>();
  const float *l = lse.const_data_ptr<float>(), *s = scale.const_data_ptr<float>();
  float* data = logits.mutable_data_ptr<float>();
  ForEachRow(rows, columns, [&](int64_t t) {
    const int64_t column = label[t] - first_row;
    loops::ScaledSoftmax(data + t * columns, columns, l[t], s[t]);
    if (column >= 0 && column < columns) data[t * columns + column] -= s[t];
  });
  return logits.to(dtype);
}

}  // namespace slipway::engine::ops::cpu
