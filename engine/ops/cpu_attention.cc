// Attention on the CPU: torch's fused kernel, on views of the packed q | k | v. It takes grouped queries as they are.
#include <ATen/ATen.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "engine/ops/cpu_kernels.h"

namespace slipway::engine::ops::cpu {
namespace {

// `rows` rows of `length` tokens from token `begin` on.
struct Batch {
  int64_t begin, rows, length;
  int64_t tokens() const { return rows * length; }
};

// All rows at once where they are of one length, else one by one.
std::vector<Batch> BatchesOf(at::IntArrayRef row_starts, int64_t max_row_length, bool uniform) {
  std::vector<Batch> batches;
  const int64_t total = row_starts.back();
  if (uniform && max_row_length > 0) return {{0, total / max_row_length, max_row_length}};
  for (size_t r = 0; r + 1 < row_starts.size(); ++r) {
    if (row_starts[r + 1] > row_starts[r]) batches.push_back({row_starts[r], 1, row_starts[r + 1] - row_starts[r]});
  }
  return batches;
}

// Heads [first, first + count) of [T, any · size] as a view [rows, count, length, size].
at::Tensor Heads(const at::Tensor& x, const Batch& batch, int64_t first, int64_t count, int64_t size) {
  return x.narrow(0, batch.begin, batch.tokens())
      .narrow(1, first * size, count * size)
      .unflatten(1, {count, size})
      .unflatten(0, {batch.rows, batch.length})
      .transpose(1, 2);
}

struct Packed {
  at::Tensor q, k, v;
};

Packed Split(const at::Tensor& qkv, const Batch& batch, int64_t heads, int64_t groups, int64_t size) {
  return {Heads(qkv, batch, 0, heads, size), Heads(qkv, batch, heads, groups, size),
          Heads(qkv, batch, heads + groups, groups, size)};
}

// The part of the flat [heads · T] buffer that holds a batch's [rows, heads, length].
at::Tensor LseOf(const at::Tensor& lse, const Batch& batch, int64_t heads) {
  return lse.narrow(0, batch.begin * heads, batch.tokens() * heads).view({batch.rows, heads, batch.length});
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& qkv, const at::Tensor& /*cu_seqlens*/,
                                             at::IntArrayRef row_starts, int64_t max_row_length, bool uniform,
                                             int64_t heads, int64_t groups, double scale) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor out = at::empty({qkv.size(0), heads * size}, qkv.options());
  at::Tensor lse = at::empty({qkv.size(0) * heads},
                             qkv.options().dtype(qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  for (const Batch& batch : BatchesOf(row_starts, max_row_length, uniform)) {
    const Packed in = Split(qkv, batch, heads, groups, size);
    const auto [batch_out, batch_lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v, 0.0, /*is_causal=*/true, std::nullopt, scale);
    Heads(out, batch, 0, heads, size).copy_(batch_out);
    LseOf(lse, batch, heads).copy_(batch_lse);
  }
  return {std::move(out), std::move(lse)};
}

at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& /*cu_seqlens*/, at::IntArrayRef row_starts,
                             int64_t max_row_length, bool uniform, int64_t heads, int64_t groups, double scale) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor dqkv = at::empty_like(qkv);
  for (const Batch& batch : BatchesOf(row_starts, max_row_length, uniform)) {
    const Packed in = Split(qkv, batch, heads, groups, size);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        Heads(dout, batch, 0, heads, size), in.q, in.k, in.v, Heads(out, batch, 0, heads, size),
        LseOf(lse, batch, heads), 0.0, /*is_causal=*/true, std::nullopt, scale);
    Heads(dqkv, batch, 0, heads, size).copy_(dq);
    Heads(dqkv, batch, heads, groups, size).copy_(dk);
    Heads(dqkv, batch, heads + groups, groups, size).copy_(dv);
  }
  return dqkv;
}

}  // namespace slipway::engine::ops::cpu
