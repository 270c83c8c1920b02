// Reference attention, one row at a time with the probabilities written out, and dropout by counter-based masks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "common/philox.h"
#include "engine/ops/ops.h"
#include "engine/ops/reference.h"

namespace slipway::engine::ops::reference {
namespace {

// One row's heads as [heads, n, D] in the type of the statistics; keys and values repeated for the query heads.
struct RowHeads {
  at::Tensor q, k, v;
};

at::Tensor HeadsOf(const at::Tensor& qkv, int64_t begin, int64_t count, int64_t first_head, int64_t heads,
                   int64_t size) {
  return qkv.narrow(0, begin, count)
      .narrow(1, first_head * size, heads * size)
      .reshape({count, heads, size})
      .transpose(0, 1);
}

// Matrices of one row's heads: [heads, n, D], keys and values repeated for the query heads.
at::Tensor RepeatedHeadsOf(const at::Tensor& columns, int64_t begin, int64_t count, int64_t heads, int64_t groups) {
  return HeadsOf(columns, begin, count, 0, groups, columns.size(1) / groups)
      .to(StatisticsType(columns))
      .repeat_interleave(heads / groups, 0);
}

RowHeads SplitRow(const at::Tensor& qkv, int64_t begin, int64_t count, int64_t heads, int64_t groups, int64_t size) {
  return {RepeatedHeadsOf(qkv.narrow(1, 0, heads * size), begin, count, heads, heads),
          RepeatedHeadsOf(qkv.narrow(1, heads * size, groups * size), begin, count, heads, groups),
          RepeatedHeadsOf(qkv.narrow(1, (heads + groups) * size, groups * size), begin, count, heads, groups)};
}

at::Tensor Scores(const RowHeads& row, bool causal, double scale) {
  const at::Tensor scores = at::matmul(row.q, row.k.transpose(1, 2)) * scale;
  if (!causal) return scores;
  const int64_t n = row.q.size(1);
  const at::Tensor future = at::ones({n, n}, row.q.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill(future, -std::numeric_limits<double>::infinity());
}

// Gradients of one row's heads, those of the keys' and values' repetitions not yet added up. `probabilities` are those
// before dropout, `mask` multiplies them (undefined: ones). `delta` is Σ dout · out of each query; undefined where the
// row has all of its keys, from which it follows.
RowHeads RowGradient(const RowHeads& row, const at::Tensor& probabilities, const at::Tensor& mask,
                     const at::Tensor& dout, at::Tensor delta, double scale) {
  const at::Tensor dropped = mask.defined() ? probabilities * mask : probabilities;
  const at::Tensor dv = at::matmul(dropped.transpose(1, 2), dout);
  at::Tensor dp = at::matmul(dout, row.v.transpose(1, 2));
  if (mask.defined()) dp = dp * mask;
  if (!delta.defined()) delta = (dp * probabilities).sum(-1, /*keepdim=*/true);
  const at::Tensor ds = probabilities * (dp - delta) * scale;
  return {at::matmul(ds, row.k), at::matmul(ds.transpose(1, 2), row.q), dv};
}

// [heads, n, D] → columns [n, groups · D] of `into` from row `begin` on; repetitions are added up.
void WriteHeads(const at::Tensor& into, const at::Tensor& heads, int64_t begin, int64_t groups) {
  const int64_t n = heads.size(1), size = heads.size(2);
  into.narrow(0, begin, n).copy_(heads.view({groups, -1, n, size}).sum(1).transpose(0, 1).reshape({n, groups * size}));
}

// The packed gradient of one row.
void WriteRowGradient(const at::Tensor& dqkv, const RowHeads& row, const at::Tensor& probabilities,
                      const at::Tensor& mask, const at::Tensor& dout, int64_t begin, int64_t heads, int64_t groups,
                      double scale) {
  const int64_t size = row.q.size(2);
  const RowHeads gradient = RowGradient(row, probabilities, mask, dout, at::Tensor(), scale);
  WriteHeads(dqkv.narrow(1, 0, heads * size), gradient.q, begin, heads);
  WriteHeads(dqkv.narrow(1, heads * size, groups * size), gradient.k, begin, groups);
  WriteHeads(dqkv.narrow(1, (heads + groups) * size, groups * size), gradient.v, begin, groups);
}

// Calls use(begin, length) for each row that is not empty.
template <typename Use>
void ForEachRow(at::IntArrayRef row_starts, const Use& use) {
  for (size_t r = 0; r + 1 < row_starts.size(); ++r) {
    if (row_starts[r + 1] > row_starts[r]) use(row_starts[r], row_starts[r + 1] - row_starts[r]);
  }
}

// The same over rows of queries and the rows of keys that they read.
template <typename Use>
void ForEachRowPair(at::IntArrayRef q_starts, at::IntArrayRef kv_starts, const Use& use) {
  for (size_t r = 0; r + 1 < q_starts.size(); ++r) {
    if (q_starts[r + 1] == q_starts[r]) continue;
    use(q_starts[r], q_starts[r + 1] - q_starts[r], kv_starts[r], kv_starts[r + 1] - kv_starts[r]);
  }
}

RowHeads SplitRowPair(const at::Tensor& q, const at::Tensor& kv, int64_t begin, int64_t n, int64_t kv_begin,
                      int64_t kv_n, int64_t heads, int64_t groups) {
  const int64_t width = kv.size(1) / 2;
  return {RepeatedHeadsOf(q, begin, n, heads, heads),
          RepeatedHeadsOf(kv.narrow(1, 0, width), kv_begin, kv_n, heads, groups),
          RepeatedHeadsOf(kv.narrow(1, width, width), kv_begin, kv_n, heads, groups)};
}

at::Tensor AttentionMask(const at::Tensor& sample_index, const at::Tensor& positions, int64_t begin, int64_t n,
                         int64_t heads, int64_t first_head, double p, int64_t seed, int64_t step, int64_t site) {
  std::vector<at::Tensor> masks;
  for (int64_t head = first_head; head < first_head + heads; ++head) {
    // Each head of the model is a site of its own; (head + 1) keeps them apart from the sites of whole layers.
    masks.push_back(ops::DropoutMask(sample_index.narrow(0, begin, n), positions.narrow(0, begin, n), n, p, seed, step,
                                     ((head + 1) << 32) | site));
  }
  return at::stack(masks);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> AttentionBlock(const at::Tensor& q, const at::Tensor& kv,
                                                  const at::Tensor& /*q_cu_seqlens*/,
                                                  const at::Tensor& /*kv_cu_seqlens*/, at::IntArrayRef q_starts,
                                                  at::IntArrayRef kv_starts, int64_t /*max_q*/, int64_t /*max_kv*/,
                                                  bool /*uniform*/, bool causal, int64_t heads, int64_t groups,
                                                  double scale) {
  at::Tensor out = at::zeros({q.size(0), q.size(1)}, q.options());
  at::Tensor lse = at::zeros({heads, q.size(0)}, q.options().dtype(StatisticsType(q)));
  ForEachRowPair(q_starts, kv_starts, [&](int64_t begin, int64_t n, int64_t kv_begin, int64_t kv_n) {
    const RowHeads row = SplitRowPair(q, kv, begin, n, kv_begin, kv_n, heads, groups);
    const at::Tensor scores = Scores(row, causal, scale);
    lse.narrow(1, begin, n).copy_(at::logsumexp(scores, {-1}));
    WriteHeads(out, at::matmul(at::softmax(scores, -1), row.v), begin, heads);
  });
  return {std::move(out), std::move(lse)};
}

std::tuple<at::Tensor, at::Tensor> AttentionBlockBackward(const at::Tensor& dout, const at::Tensor& q,
                                                          const at::Tensor& kv, const at::Tensor& out,
                                                          const at::Tensor& lse, const at::Tensor& /*q_cu_seqlens*/,
                                                          const at::Tensor& /*kv_cu_seqlens*/, at::IntArrayRef q_starts,
                                                          at::IntArrayRef kv_starts, int64_t /*max_q*/,
                                                          int64_t /*max_kv*/, bool /*uniform*/, bool causal,
                                                          int64_t heads, int64_t groups, double scale) {
  const int64_t size = q.size(1) / heads, width = groups * size;
  at::Tensor dq = at::zeros({q.size(0), q.size(1)}, q.options()), dkv = at::zeros_like(kv);
  ForEachRowPair(q_starts, kv_starts, [&](int64_t begin, int64_t n, int64_t kv_begin, int64_t kv_n) {
    const RowHeads row = SplitRowPair(q, kv, begin, n, kv_begin, kv_n, heads, groups);
    const at::Tensor row_dout = HeadsOf(dout, begin, n, 0, heads, size).to(lse.scalar_type());
    const at::Tensor row_out = HeadsOf(out, begin, n, 0, heads, size).to(lse.scalar_type());
    const at::Tensor probabilities = at::exp(Scores(row, causal, scale) - lse.narrow(1, begin, n).unsqueeze(-1));
    const RowHeads gradient =
        RowGradient(row, probabilities, at::Tensor(), row_dout, (row_dout * row_out).sum(-1, /*keepdim=*/true), scale);
    WriteHeads(dq, gradient.q, begin, heads);
    WriteHeads(dkv.narrow(1, 0, width), gradient.k, kv_begin, groups);
    WriteHeads(dkv.narrow(1, width, width), gradient.v, kv_begin, groups);
  });
  return {std::move(dq), std::move(dkv)};
}

std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& qkv, const at::Tensor& /*cu_seqlens*/,
                                             at::IntArrayRef row_starts, int64_t /*max_row_length*/, bool /*uniform*/,
                                             int64_t heads, int64_t groups, double scale) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor out = at::zeros({qkv.size(0), heads * size}, qkv.options());
  at::Tensor lse = at::zeros({heads, qkv.size(0)}, qkv.options().dtype(StatisticsType(qkv)));
  ForEachRow(row_starts, [&](int64_t begin, int64_t n) {
    const RowHeads row = SplitRow(qkv, begin, n, heads, groups, size);
    const at::Tensor scores = Scores(row, /*causal=*/true, scale);
    lse.narrow(1, begin, n).copy_(at::logsumexp(scores, {-1}));
    out.narrow(0, begin, n)
        .copy_(at::matmul(at::softmax(scores, -1), row.v).transpose(0, 1).reshape({n, heads * size}));
  });
  return {std::move(out), std::move(lse)};
}

at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& /*out*/,
                             const at::Tensor& lse, const at::Tensor& /*cu_seqlens*/, at::IntArrayRef row_starts,
                             int64_t /*max_row_length*/, bool /*uniform*/, int64_t heads, int64_t groups,
                             double scale) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor dqkv = at::zeros_like(qkv);
  ForEachRow(row_starts, [&](int64_t begin, int64_t n) {
    const RowHeads row = SplitRow(qkv, begin, n, heads, groups, size);
    const at::Tensor probabilities =
        at::exp(Scores(row, /*causal=*/true, scale) - lse.narrow(1, begin, n).unsqueeze(-1));
    const at::Tensor row_dout = HeadsOf(dout, begin, n, 0, heads, size).to(StatisticsType(qkv));
    WriteRowGradient(dqkv, row, probabilities, at::Tensor(), row_dout, begin, heads, groups, scale);
  });
  return dqkv;
}

at::Tensor AttentionDropout(const at::Tensor& qkv, const at::Tensor& sample_index, const at::Tensor& positions,
                            at::IntArrayRef row_starts, int64_t heads, int64_t groups, double scale, int64_t first_head,
                            double p, int64_t seed, int64_t step, int64_t site) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor out = at::zeros({qkv.size(0), heads * size}, qkv.options());
  ForEachRow(row_starts, [&](int64_t begin, int64_t n) {
    const RowHeads row = SplitRow(qkv, begin, n, heads, groups, size);
    const at::Tensor mask = AttentionMask(sample_index, positions, begin, n, heads, first_head, p, seed, step, site);
    const at::Tensor probabilities = at::softmax(Scores(row, /*causal=*/true, scale), -1) * mask;
    out.narrow(0, begin, n).copy_(at::matmul(probabilities, row.v).transpose(0, 1).reshape({n, heads * size}));
  });
  return out;
}

at::Tensor AttentionDropoutBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& sample_index,
                                    const at::Tensor& positions, at::IntArrayRef row_starts, int64_t heads,
                                    int64_t groups, double scale, int64_t first_head, double p, int64_t seed,
                                    int64_t step, int64_t site) {
  const int64_t size = qkv.size(1) / (heads + 2 * groups);
  at::Tensor dqkv = at::zeros_like(qkv);
  ForEachRow(row_starts, [&](int64_t begin, int64_t n) {
    const RowHeads row = SplitRow(qkv, begin, n, heads, groups, size);
    const at::Tensor mask = AttentionMask(sample_index, positions, begin, n, heads, first_head, p, seed, step, site);
    const at::Tensor row_dout = HeadsOf(dout, begin, n, 0, heads, size).to(StatisticsType(qkv));
    WriteRowGradient(dqkv, row, at::softmax(Scores(row, /*causal=*/true, scale), -1), mask.to(StatisticsType(qkv)),
                     row_dout, begin, heads, groups, scale);
  });
  return dqkv;
}

at::Tensor DropoutMask(const at::Tensor& sample_index, const at::Tensor& positions, int64_t features, double p,
                       int64_t seed, int64_t step, int64_t site) {
  const at::Tensor samples = sample_index.cpu().contiguous(), tokens = positions.cpu().contiguous();
  at::Tensor mask = at::empty({samples.size(0), features}, at::kFloat);
  const int64_t* sample = samples.const_data_ptr<int64_t>();
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  float* out = mask.mutable_data_ptr<float>();
  const PhiloxKey key =
      DropoutKey(static_cast<uint64_t>(seed), static_cast<uint64_t>(step), static_cast<uint64_t>(site));
  const float threshold = static_cast<float>(p), keep = 1.0f / (1.0f - threshold);
  at::parallel_for(0, mask.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t f = 0; f < features; f += 4) {
        const PhiloxBlock block =
            Philox(key, DropoutCounter(static_cast<uint64_t>(sample[t]), static_cast<uint32_t>(token[t]),
                                       static_cast<uint32_t>(f / 4)));
        for (int64_t i = 0; i < 4 && f + i < features; ++i) {
          out[t * features + f + i] = PhiloxUniform(block.v[i]) < threshold ? 0.0f : keep;
        }
      }
    }
  });
  return mask.to(sample_index.device());
}

at::Tensor AddDropout(const at::Tensor& residual, const at::Tensor& y, const at::Tensor& sample_index,
                      const at::Tensor& positions, double p, int64_t seed, int64_t step, int64_t site) {
  const at::ScalarType type = StatisticsType(y);
  const at::Tensor mask = ops::DropoutMask(sample_index, positions, y.size(1), p, seed, step, site);
  return (residual.to(type) + y.to(type) * mask.to(type)).to(residual.scalar_type());
}

at::Tensor DropoutBackward(const at::Tensor& dy, const at::Tensor& sample_index, const at::Tensor& positions, double p,
                           int64_t seed, int64_t step, int64_t site) {
  const at::ScalarType type = StatisticsType(dy);
  const at::Tensor mask = ops::DropoutMask(sample_index, positions, dy.size(1), p, seed, step, site);
  return (dy.to(type) * mask.to(type)).to(dy.scalar_type());
}

}  // namespace slipway::engine::ops::reference
