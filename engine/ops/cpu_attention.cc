// Attention on the CPU: torch's fused kernel, on views of the packed heads. It takes grouped queries as they are.
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
struct BatchPair {
  Batch q, kv;
};

// The rows of queries and those of the keys and values that they read.
struct RowPairs {
  at::IntArrayRef q_starts, kv_starts;
  int64_t max_q, max_kv;
  bool uniform;

  // All rows at once where they are of one length, else one by one.
  std::vector<BatchPair> Batches() const {
    std::vector<BatchPair> batches;
    if (uniform && max_q > 0) {
      const int64_t rows = q_starts.back() / max_q;
      return {{{0, rows, max_q}, {0, rows, max_kv}}};
    }
    for (size_t r = 0; r + 1 < q_starts.size(); ++r) {
      if (q_starts[r + 1] == q_starts[r]) continue;
      batches.push_back(
          {{q_starts[r], 1, q_starts[r + 1] - q_starts[r]}, {kv_starts[r], 1, kv_starts[r + 1] - kv_starts[r]}});
    }
    return batches;
  }
};

// Columns that hold so many heads: [T, count · size], possibly of a larger matrix.
struct Heads {
  at::Tensor columns;
  int64_t count;

  // As a view [rows, count, length, size].
  at::Tensor Of(const Batch& batch) const {
    return columns.narrow(0, batch.begin, batch.tokens())
        .unflatten(1, {count, columns.size(1) / count})
        .unflatten(0, {batch.rows, batch.length})
        .transpose(1, 2);
  }
};

struct Packed {
  Heads q, k, v;
};

Packed SplitQkv(const at::Tensor& qkv, int64_t heads, int64_t groups) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  return {{qkv.narrow(1, 0, heads * size), heads},
          {qkv.narrow(1, heads * size, groups * size), groups},
          {qkv.narrow(1, (heads + groups) * size, groups * size), groups}};
}

Packed SplitQAndKv(const at::Tensor& q, const at::Tensor& kv, int64_t heads, int64_t groups) {
  const int64_t width = kv.size(1) / 2;
  return {{q, heads}, {kv.narrow(1, 0, width), groups}, {kv.narrow(1, width, width), groups}};
}

// The part of [heads, T] that holds a batch, as a view [rows, heads, length].
at::Tensor LseOf(const at::Tensor& lse, const Batch& batch) {
  return lse.narrow(1, batch.begin, batch.tokens()).unflatten(1, {batch.rows, batch.length}).transpose(0, 1);
}

std::tuple<at::Tensor, at::Tensor> Forward(const Packed& in, const RowPairs& rows, bool causal, double scale) {
  const at::Tensor& q = in.q.columns;
  at::Tensor out = at::empty({q.size(0), q.size(1)}, q.options());
  at::Tensor lse =
      at::empty({in.q.count, q.size(0)}, q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  for (const auto& [queries, keys] : rows.Batches()) {
    const auto [batch_out, batch_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        in.q.Of(queries), in.k.Of(keys), in.v.Of(keys), 0.0, causal, std::nullopt, scale);
    Heads{out, in.q.count}.Of(queries).copy_(batch_out);
    LseOf(lse, queries).copy_(batch_lse);
  }
  return {std::move(out), std::move(lse)};
}

// Writes the gradients into `into`, columns of the same shapes as `in`.
void Backward(const at::Tensor& dout, const Packed& in, const at::Tensor& out, const at::Tensor& lse,
              const RowPairs& rows, bool causal, double scale, const Packed& into) {
  for (const auto& [queries, keys] : rows.Batches()) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        Heads{dout, in.q.count}.Of(queries), in.q.Of(queries), in.k.Of(keys), in.v.Of(keys),
        Heads{out, in.q.count}.Of(queries), LseOf(lse, queries).contiguous(), 0.0, causal, std::nullopt, scale);
    into.q.Of(queries).copy_(dq);
    into.k.Of(keys).copy_(dk);
    into.v.Of(keys).copy_(dv);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& qkv, const at::Tensor& /*cu_seqlens*/,
                                             at::IntArrayRef row_starts, int64_t max_row_length, bool uniform,
                                             int64_t heads, int64_t groups, double scale) {
  return Forward(SplitQkv(qkv, heads, groups), {row_starts, row_starts, max_row_length, max_row_length, uniform},
                 /*causal=*/true, scale);
}

at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& /*cu_seqlens*/, at::IntArrayRef row_starts,
                             int64_t max_row_length, bool uniform, int64_t heads, int64_t groups, double scale) {
  at::Tensor dqkv = at::empty_like(qkv);
  Backward(dout, SplitQkv(qkv, heads, groups), out, lse,
           {row_starts, row_starts, max_row_length, max_row_length, uniform}, /*causal=*/true, scale,
           SplitQkv(dqkv, heads, groups));
  return dqkv;
}

std::tuple<at::Tensor, at::Tensor> AttentionBlock(const at::Tensor& q, const at::Tensor& kv,
                                                  const at::Tensor& /*q_cu_seqlens*/,
                                                  const at::Tensor& /*kv_cu_seqlens*/, at::IntArrayRef q_starts,
                                                  at::IntArrayRef kv_starts, int64_t max_q, int64_t max_kv,
                                                  bool uniform, bool causal, int64_t heads, int64_t groups,
                                                  double scale) {
  return Forward(SplitQAndKv(q, kv, heads, groups), {q_starts, kv_starts, max_q, max_kv, uniform}, causal, scale);
}

std::tuple<at::Tensor, at::Tensor> AttentionBlockBackward(const at::Tensor& dout, const at::Tensor& q,
                                                          const at::Tensor& kv, const at::Tensor& out,
                                                          const at::Tensor& lse, const at::Tensor& /*q_cu_seqlens*/,
                                                          const at::Tensor& /*kv_cu_seqlens*/, at::IntArrayRef q_starts,
                                                          at::IntArrayRef kv_starts, int64_t max_q, int64_t max_kv,
                                                          bool uniform, bool causal, int64_t heads, int64_t groups,
                                                          double scale) {
  at::Tensor dq = at::empty({q.size(0), q.size(1)}, q.options()), dkv = at::empty_like(kv);
  Backward(dout, SplitQAndKv(q, kv, heads, groups), out, lse, {q_starts, kv_starts, max_q, max_kv, uniform}, causal,
           scale, SplitQAndKv(dq, dkv, heads, groups));
  return {std::move(dq), std::move(dkv)};
}

}  // namespace slipway::engine::ops::cpu
