// What the attention operations on CUDA share.
#ifndef SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_SUPPORT_H_
#define SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_SUPPORT_H_

#include <ATen/ATen.h>

namespace slipway::engine::ops::cuda {

// Heads as [T, n, D], possibly views of packed ones.
struct Heads {
  at::Tensor q, k, v;
};

// [T, n, D] as [rows, n, length, D], strides only.
inline at::Tensor AsBatch(const at::Tensor& x, int64_t length) {
  return x.unflatten(0, {x.size(0) / length, length}).transpose(1, 2);
}

// The philox state of a call without dropout: present, never read.
inline at::Tensor NoPhilox(const at::Tensor& like) { return at::empty({}, like.options().dtype(at::kLong)); }

// Masks in the numbering of ATen's memory-efficient kernel.
inline constexpr int64_t kNoMask = 0;
inline constexpr int64_t kCausalFromTopLeft = 1;

// That kernel knows no grouped heads: repeat them, and add their gradients up again.
inline at::Tensor Repeat(const at::Tensor& x, int64_t times) { return times == 1 ? x : x.repeat_interleave(times, 1); }
inline at::Tensor SumGroups(const at::Tensor& dx, int64_t groups) {
  return dx.view({dx.size(0), groups, dx.size(1) / groups, dx.size(2)}).sum(2);
}

}  // namespace slipway::engine::ops::cuda

#endif  // SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_SUPPORT_H_
