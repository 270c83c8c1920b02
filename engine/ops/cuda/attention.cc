#include "engine/ops/cuda/attention.h"

#include <ATen/ATen.h>

#include "engine/ops/cuda/attention_support.h"

namespace slipway::engine::ops::cuda {
namespace {

// The heads of packed qkv [T, (heads + 2 groups) · D].
Heads Split(const at::Tensor& qkv, int64_t heads, int64_t groups) {
  const int64_t dim = qkv.size(1) / (heads + 2 * groups);
  const at::Tensor all = qkv.view({qkv.size(0), heads + 2 * groups, dim});
  return {all.narrow(1, 0, heads), all.narrow(1, heads, groups), all.narrow(1, heads + groups, groups)};
}

at::Tensor Pack(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& qkv, int64_t heads,
                int64_t groups) {
  at::Tensor dqkv = at::empty_like(qkv);
  const Heads out = Split(dqkv, heads, groups);
  out.q.copy_(dq);
  out.k.copy_(dk);
  out.v.copy_(dv);
  return dqkv;
}

std::tuple<at::Tensor, at::Tensor> Fp32Forward(const Heads& x, const at::Tensor& cu_seqlens, int64_t max_row_length,
                                               double scale) {
  const int64_t repeat = x.q.size(1) / x.k.size(1);
  const auto result = at::_efficient_attention_forward(x.q.unsqueeze(0), Repeat(x.k, repeat).unsqueeze(0),
                                                       Repeat(x.v, repeat).unsqueeze(0), std::nullopt, cu_seqlens,
                                                       cu_seqlens, max_row_length, max_row_length, /*dropout_p=*/0.0,
                                                       kCausalFromTopLeft, /*compute_log_sumexp=*/true, scale);
  return {std::get<0>(result).flatten(2).squeeze(0), std::get<1>(result)};
}

at::Tensor Fp32Backward(const at::Tensor& dout, const at::Tensor& qkv, const Heads& x, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t max_row_length, double scale) {
  const int64_t heads = x.q.size(1), groups = x.k.size(1), repeat = heads / groups;
  const auto as_heads = [&](const at::Tensor& t) { return t.view({1, t.size(0), heads, -1}); };
  const auto [dq, dk, dv, unused] = at::_efficient_attention_backward(
      as_heads(dout), x.q.unsqueeze(0), Repeat(x.k, repeat).unsqueeze(0), Repeat(x.v, repeat).unsqueeze(0),
      std::nullopt, as_heads(out), cu_seqlens, cu_seqlens, max_row_length, max_row_length, lse, /*dropout_p=*/0.0,
      NoPhilox(out), NoPhilox(out), kCausalFromTopLeft,
      /*bias_requires_grad=*/false, scale);
  return Pack(dq.squeeze(0), SumGroups(dk.squeeze(0), groups), SumGroups(dv.squeeze(0), groups), qkv, heads, groups);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> AttentionCuda(const at::Tensor& qkv, const at::Tensor& cu_seqlens, at::IntArrayRef,
                                                 int64_t max_row_length, bool uniform, int64_t heads, int64_t groups,
                                                 double scale) {
  const Heads x = Split(qkv, heads, groups);
  if (qkv.scalar_type() == at::kFloat) return Fp32Forward(x, cu_seqlens, max_row_length, scale);
  if (uniform) {
    const auto result = at::_scaled_dot_product_cudnn_attention(
        AsBatch(x.q, max_row_length), AsBatch(x.k, max_row_length), AsBatch(x.v, max_row_length), std::nullopt,
        /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale);
    return {std::get<0>(result).transpose(1, 2).flatten(2).flatten(0, 1), std::get<1>(result)};
  }
  const auto result =
      at::_flash_attention_forward(x.q, x.k, x.v, cu_seqlens, cu_seqlens, max_row_length, max_row_length,
                                   /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result).flatten(1), std::get<1>(result)};
}

at::Tensor AttentionBackwardCuda(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& out,
                                 const at::Tensor& lse, const at::Tensor& cu_seqlens, at::IntArrayRef,
                                 int64_t max_row_length, bool uniform, int64_t heads, int64_t groups, double scale) {
  const Heads x = Split(qkv, heads, groups);
  if (qkv.scalar_type() == at::kFloat) return Fp32Backward(dout, qkv, x, out, lse, cu_seqlens, max_row_length, scale);
  const auto as_heads = [&](const at::Tensor& t) { return t.view({t.size(0), heads, -1}); };
  if (uniform) {
    const auto back = [](const at::Tensor& t) { return t.transpose(1, 2).flatten(0, 1); };
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        AsBatch(as_heads(dout), max_row_length), AsBatch(x.q, max_row_length), AsBatch(x.k, max_row_length),
        AsBatch(x.v, max_row_length), AsBatch(as_heads(out), max_row_length), lse, NoPhilox(out), NoPhilox(out),
        at::Tensor(), at::Tensor(), at::Tensor(), max_row_length, max_row_length, /*dropout_p=*/0.0, /*is_causal=*/true,
        scale);
    return Pack(back(dq), back(dk), back(dv), qkv, heads, groups);
  }
  const at::Tensor no_rng = at::empty({2}, out.options().dtype(at::kUInt64));
  const auto [dq, dk, dv] = at::_flash_attention_backward(as_heads(dout), x.q, x.k, x.v, as_heads(out), lse, cu_seqlens,
                                                          cu_seqlens, max_row_length, max_row_length, /*dropout_p=*/0.0,
                                                          /*is_causal=*/true, no_rng, NoPhilox(out), scale);
  return Pack(dq, dk, dv, qkv, heads, groups);
}

}  // namespace slipway::engine::ops::cuda
