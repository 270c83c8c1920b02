#include "engine/nn/context_blocks.h"

#include <ATen/ATen.h>

#include <cmath>

#include "engine/ops/ops.h"

namespace slipway::engine::nn::internal {
namespace {

RowStarts Starts(const at::Tensor& device, const std::vector<int32_t>& host, int64_t longest) {
  return {device, {host.begin(), host.end()}, longest};
}

}  // namespace

BlockCall MakeBlockCall(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts) {
  const int64_t all = counts.heads + 2 * counts.groups;
  TORCH_CHECK(layout.num_tokens == qkv.size(0) && qkv.size(1) % all == 0 && counts.heads % counts.groups == 0,
              "attention of ", counts.heads, " heads in ", counts.groups, " groups over ", layout.num_tokens,
              " tokens does not fit q|k|v of shape ", qkv.sizes());
  const ContextMap& map = *layout.context;
  return {.map = layout.context,
          .rows = Starts(layout.cu_seqlens, layout.cu_seqlens_host, layout.max_row_length),
          .chunks = Starts(map.chunk_starts, map.chunk_starts_host, layout.max_row_length / 2),
          .uniform = layout.uniform,
          .counts = counts,
          .scale = 1.0 / std::sqrt(static_cast<double>(qkv.size(1) / all))};
}

LocalQueries::Reading LocalQueries::ReadingOf(int source) const {
  if (source == call_.map->place.rank) return Reading::kOwnBlock;
  return source < call_.map->place.rank ? Reading::kEarlierBlock : Reading::kLaterBlock;
}

at::Tensor LocalQueries::QueriesOf(Reading reading, const at::Tensor& x, int64_t dim) const {
  return reading == Reading::kLaterBlock ? x.index_select(dim, call_.map->later) : x;
}

at::Tensor LocalQueries::KeysOf(Reading reading, const at::Tensor& kv) const {
  return reading == Reading::kEarlierBlock ? kv.index_select(0, call_.map->earlier) : kv;
}

void LocalQueries::Attend(int source, const at::Tensor& kv) {
  const Reading reading = ReadingOf(source);
  const RowStarts& queries = reading == Reading::kLaterBlock ? call_.chunks : call_.rows;
  const RowStarts& keys = reading == Reading::kEarlierBlock ? call_.chunks : call_.rows;
  const auto [out, lse] =
      ops::AttentionBlock(QueriesOf(reading, q_), KeysOf(reading, kv), queries.device, keys.device, queries.host,
                          keys.host, queries.longest, keys.longest, call_.uniform, reading == Reading::kOwnBlock,
                          call_.counts.heads, call_.counts.groups, call_.scale);
  const at::Tensor heads = out.unflatten(1, {call_.counts.heads, -1}).to(lse.scalar_type());
  if (reading == Reading::kOwnBlock) {
    sum_ = heads;
    lse_ = lse;
  } else if (reading == Reading::kEarlierBlock) {
    Merge(sum_, lse_, heads, lse);
  } else {
    const at::Tensor later_sum = QueriesOf(reading, sum_), later_lse = QueriesOf(reading, lse_, 1);
    Merge(later_sum, later_lse, heads, lse);
    sum_.index_copy_(0, call_.map->later, later_sum);
    lse_.index_copy_(1, call_.map->later, later_lse);
  }
}

// In place: out and lse over some blocks become those over one more.
void LocalQueries::Merge(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& block_out,
                         const at::Tensor& block_lse) {
  const at::Tensor total = at::logaddexp(lse, block_lse);
  const auto share = [&](const at::Tensor& part) { return at::exp(part - total).t().unsqueeze(-1); };
  out.mul_(share(lse)).addcmul_(block_out, share(block_lse));
  lse.copy_(total);
}

std::pair<at::Tensor, at::Tensor> LocalQueries::Result() { return {sum_.flatten(1).to(q_.scalar_type()), lse_}; }

void LocalQueries::BeginBackward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse) {
  dout_ = dout;
  out_ = out;
  lse_ = lse;
  dq_ = at::zeros(out.sizes(), lse.options());
}

LocalQueries::BlockGradient LocalQueries::Backward(int source, const at::Tensor& kv) {
  const Reading reading = ReadingOf(source);
  const RowStarts& queries = reading == Reading::kLaterBlock ? call_.chunks : call_.rows;
  const RowStarts& keys = reading == Reading::kEarlierBlock ? call_.chunks : call_.rows;
  auto [dq, dkv] = ops::AttentionBlockBackward(
      QueriesOf(reading, dout_), QueriesOf(reading, q_), KeysOf(reading, kv), QueriesOf(reading, out_),
      QueriesOf(reading, lse_, 1), queries.device, keys.device, queries.host, keys.host, queries.longest, keys.longest,
      call_.uniform, reading == Reading::kOwnBlock, call_.counts.heads, call_.counts.groups, call_.scale);
  if (reading == Reading::kLaterBlock) {
    dq_.index_add_(0, call_.map->later, dq.to(dq_.scalar_type()));
  } else {
    dq_.add_(dq);
  }
  return {std::move(dkv), reading == Reading::kEarlierBlock};
}

at::Tensor LocalQueries::NewGradient(const at::Tensor& kv) const { return at::zeros(kv.sizes(), lse_.options()); }

void LocalQueries::AddTo(at::Tensor sum, const BlockGradient& gradient) const {
  if (gradient.earlier_chunk_only) {
    sum.index_add_(0, call_.map->earlier, gradient.dkv.to(sum.scalar_type()));
  } else {
    sum.add_(gradient.dkv);
  }
}

}  // namespace slipway::engine::nn::internal
