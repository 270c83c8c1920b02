// Attention over one block of keys and values on CUDA, by the same kernels as whole rows' (attention.cc). Each keeps
// the log-sum-exp in a layout of its own; [heads, Tq] is what comes out and goes in here.
#include <ATen/ATen.h>

#include <limits>

#include "engine/ops/cuda/attention.h"
#include "engine/ops/cuda/attention_support.h"

namespace slipway::engine::ops::cuda {
namespace {

struct Block {
  Heads x;
  const at::Tensor& q_starts;
  const at::Tensor& kv_starts;
  int64_t max_q, max_kv;
  bool uniform, causal;
  double scale;

  int64_t heads() const { return x.q.size(1); }
  // [T, heads · D] as [T, heads, D].
  at::Tensor AsHeads(const at::Tensor& t) const { return t.view({t.size(0), heads(), -1}); }
};

Heads SplitQAndKv(const at::Tensor& q, const at::Tensor& kv, int64_t heads, int64_t groups) {
  const at::Tensor keys_and_values = kv.view({kv.size(0), 2 * groups, -1});
  return {q.unflatten(1, {heads, -1}), keys_and_values.narrow(1, 0, groups), keys_and_values.narrow(1, groups, groups)};
}

// --- One length of all rows, bf16: cuDNN. Its log-sum-exp is [rows, heads, length, 1]. -----------------------
std::tuple<at::Tensor, at::Tensor> CudnnForward(const Block& b) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      AsBatch(b.x.q, b.max_q), AsBatch(b.x.k, b.max_kv), AsBatch(b.x.v, b.max_kv), std::nullopt,
      /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, b.causal, /*return_debug_mask=*/false, b.scale);
  const at::Tensor lse = std::get<1>(result).view({-1, b.heads(), b.max_q});
  return {std::get<0>(result).transpose(1, 2).flatten(2).flatten(0, 1), lse.transpose(0, 1).flatten(1)};
}

Heads CudnnBackward(const at::Tensor& dout, const Block& b, const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor by_row = lse.unflatten(1, {-1, b.max_q}).transpose(0, 1).contiguous().unsqueeze(-1);
  const auto back = [](const at::Tensor& t) { return t.transpose(1, 2).flatten(0, 1); };
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      AsBatch(b.AsHeads(dout), b.max_q), AsBatch(b.x.q, b.max_q), AsBatch(b.x.k, b.max_kv), AsBatch(b.x.v, b.max_kv),
      AsBatch(b.AsHeads(out), b.max_q), by_row, NoPhilox(out), NoPhilox(out), at::Tensor(), at::Tensor(), at::Tensor(),
      b.max_q, b.max_kv, /*dropout_p=*/0.0, b.causal, b.scale);
  return {back(dq), back(dk), back(dv)};
}

// --- Ragged rows, bf16: flash attention. Its log-sum-exp is [heads, Tq]. --------------------------------------
std::tuple<at::Tensor, at::Tensor> FlashForward(const Block& b) {
  const auto result = at::_flash_attention_forward(b.x.q, b.x.k, b.x.v, b.q_starts, b.kv_starts, b.max_q, b.max_kv,
                                                   /*dropout_p=*/0.0, b.causal, /*return_debug_mask=*/false, b.scale);
  return {std::get<0>(result).flatten(1), std::get<1>(result)};
}

Heads FlashBackward(const at::Tensor& dout, const Block& b, const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor no_rng = at::empty({2}, out.options().dtype(at::kUInt64));
  const auto [dq, dk, dv] =
      at::_flash_attention_backward(b.AsHeads(dout), b.x.q, b.x.k, b.x.v, b.AsHeads(out), lse, b.q_starts, b.kv_starts,
                                    b.max_q, b.max_kv, /*dropout_p=*/0.0, b.causal, no_rng, NoPhilox(out), b.scale);
  return {dq, dk, dv};
}

// --- fp32: the memory-efficient kernel. Its log-sum-exp is [rows, heads, max_q rounded up to 32]. -------------
constexpr int64_t kLseGrain = 32;

// Where the log-sum-exp of each token stands in a row of [heads, rows · padded].
at::Tensor PlacesInRows(const Block& b, int64_t tokens, int64_t padded) {
  const at::Tensor token = at::arange(tokens, b.q_starts.options().dtype(at::kLong));
  const at::Tensor starts = b.q_starts.to(at::kLong);
  const at::Tensor row = at::bucketize(token, starts.narrow(0, 1, starts.size(0) - 1).contiguous(),
                                       /*out_int32=*/false, /*right=*/true);
  return row * padded + token - starts.index_select(0, row);
}

std::tuple<at::Tensor, at::Tensor> Fp32Forward(const Block& b) {
  const int64_t repeat = b.heads() / b.x.k.size(1);
  const auto result = at::_efficient_attention_forward(
      b.x.q.unsqueeze(0), Repeat(b.x.k, repeat).unsqueeze(0), Repeat(b.x.v, repeat).unsqueeze(0), std::nullopt,
      b.q_starts, b.kv_starts, b.max_q, b.max_kv, /*dropout_p=*/0.0, b.causal ? kCausalFromTopLeft : kNoMask,
      /*compute_log_sumexp=*/true, b.scale);
  const at::Tensor& lse = std::get<1>(result);
  const at::Tensor places = PlacesInRows(b, b.x.q.size(0), lse.size(2));
  return {std::get<0>(result).flatten(2).squeeze(0), lse.transpose(0, 1).flatten(1).index_select(1, places)};
}

Heads Fp32Backward(const at::Tensor& dout, const Block& b, const at::Tensor& out, const at::Tensor& lse) {
  const int64_t groups = b.x.k.size(1), repeat = b.heads() / groups, rows = b.q_starts.size(0) - 1;
  const int64_t padded = (b.max_q + kLseGrain - 1) / kLseGrain * kLseGrain;
  at::Tensor by_row = at::full({b.heads(), rows * padded}, std::numeric_limits<float>::infinity(), lse.options());
  by_row.index_copy_(1, PlacesInRows(b, lse.size(1), padded), lse);
  by_row = by_row.view({b.heads(), rows, padded}).transpose(0, 1).contiguous();
  const auto [dq, dk, dv, unused] = at::_efficient_attention_backward(
      b.AsHeads(dout).unsqueeze(0), b.x.q.unsqueeze(0), Repeat(b.x.k, repeat).unsqueeze(0),
      Repeat(b.x.v, repeat).unsqueeze(0), std::nullopt, b.AsHeads(out).unsqueeze(0), b.q_starts, b.kv_starts, b.max_q,
      b.max_kv, by_row, /*dropout_p=*/0.0, NoPhilox(out), NoPhilox(out), b.causal ? kCausalFromTopLeft : kNoMask,
      /*bias_requires_grad=*/false, b.scale);
  return {dq.squeeze(0), SumGroups(dk.squeeze(0), groups), SumGroups(dv.squeeze(0), groups)};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> AttentionBlockCuda(const at::Tensor& q, const at::Tensor& kv,
                                                      const at::Tensor& q_cu_seqlens, const at::Tensor& kv_cu_seqlens,
                                                      at::IntArrayRef, at::IntArrayRef, int64_t max_q, int64_t max_kv,
                                                      bool uniform, bool causal, int64_t heads, int64_t groups,
                                                      double scale) {
  const Block block{
      SplitQAndKv(q, kv, heads, groups), q_cu_seqlens, kv_cu_seqlens, max_q, max_kv, uniform, causal, scale};
  if (q.scalar_type() == at::kFloat) return Fp32Forward(block);
  return uniform ? CudnnForward(block) : FlashForward(block);
}

std::tuple<at::Tensor, at::Tensor> AttentionBlockBackwardCuda(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor& q_cu_seqlens, const at::Tensor& kv_cu_seqlens, at::IntArrayRef, at::IntArrayRef, int64_t max_q,
    int64_t max_kv, bool uniform, bool causal, int64_t heads, int64_t groups, double scale) {
  const Block block{
      SplitQAndKv(q, kv, heads, groups), q_cu_seqlens, kv_cu_seqlens, max_q, max_kv, uniform, causal, scale};
  const Heads gradient = q.scalar_type() == at::kFloat ? Fp32Backward(dout, block, out, lse)
                         : uniform                     ? CudnnBackward(dout, block, out, lse)
                                                       : FlashBackward(dout, block, out, lse);
  at::Tensor dkv = at::empty_like(kv);
  const at::Tensor parts = dkv.view({kv.size(0), 2 * groups, -1});
  parts.narrow(1, 0, groups).copy_(gradient.k);
  parts.narrow(1, groups, groups).copy_(gradient.v);
  return {gradient.q.reshape({q.size(0), q.size(1)}), std::move(dkv)};
}

}  // namespace slipway::engine::ops::cuda
