#include "engine/nn/context_heads.h"

#include <numeric>
#include <vector>

#include "engine/nn/function_support.h"

namespace slipway::engine::nn::internal {
namespace {

struct ExchangeCall {
  comm::CommPtr group;
  HeadCounts counts;
  at::Tensor to_whole, to_ranks;
};

// Rows of x [n · T, …] are n shares, one for each rank; returns those that the ranks gave to this one.
at::Tensor ExchangeShares(const at::Tensor& x, comm::Communicator& group) {
  at::Tensor received = at::empty(x.sizes(), x.options());
  const std::vector<int64_t> splits(group.size(), x.size(0) / group.size());
  group.AllToAll(received, x, splits, splits)->Wait();
  return received;
}

// [T, n, W], the n-th part for the n-th rank → [n · T, W] in the order of the whole rows.
at::Tensor GiveHeads(const at::Tensor& by_rank, const ExchangeCall& call) {
  const at::Tensor shares = by_rank.transpose(0, 1).contiguous().flatten(0, 1);
  return ExchangeShares(shares, *call.group).index_select(0, call.to_whole);
}

// The way back.
at::Tensor GiveTokens(const at::Tensor& whole, const ExchangeCall& call) {
  const at::Tensor shares = ExchangeShares(whole.index_select(0, call.to_ranks), *call.group);
  return shares.unflatten(0, {call.group->size(), -1}).transpose(0, 1);
}

// The columns of q | k | v that each rank gets, [T, n, W]; groups are repeated until they divide.
at::Tensor ColumnsByRank(const at::Tensor& qkv, HeadCounts counts, int ranks) {
  const at::Tensor heads = qkv.unflatten(1, {counts.heads + 2 * counts.groups, -1});
  const int64_t repeat = std::lcm(counts.groups, int64_t{ranks}) / counts.groups;
  const auto part = [&](int64_t first, int64_t count, int64_t times) {
    const at::Tensor own = heads.narrow(1, first, count);
    return (times == 1 ? own : own.repeat_interleave(times, 1)).unflatten(1, {ranks, -1}).flatten(2);
  };
  return at::cat({part(0, counts.heads, 1), part(counts.heads, counts.groups, repeat),
                  part(counts.heads + counts.groups, counts.groups, repeat)},
                 2);
}

// Its conjugate: [T, n, W] → [T, (heads + 2 · groups) · D], repetitions added up.
at::Tensor SumOfColumns(const at::Tensor& by_rank, HeadCounts counts, int ranks) {
  const HeadCounts own = HeadsOfRank(counts, ranks);
  const int64_t size = by_rank.size(2) / (own.heads + 2 * own.groups);
  const auto part = [&](int64_t first, int64_t own_count, int64_t count) {
    return by_rank.narrow(2, first * size, own_count * size)
        .reshape({by_rank.size(0), count, own_count * ranks / count, size})
        .sum(2)
        .flatten(1);
  };
  return at::cat({part(0, own.heads, counts.heads), part(own.heads, own.groups, counts.groups),
                  part(own.heads + own.groups, own.groups, counts.groups)},
                 1);
}

struct TokensForHeadsFunction : torch::autograd::Function<TokensForHeadsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const ExchangeCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    return GiveHeads(ColumnsByRank(qkv, call.counts, call.group->size()), call);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ExchangeCall>(context);
    return {SumOfColumns(GiveTokens(grads[0], call), call.counts, call.group->size()), at::Tensor()};
  }
};

struct HeadsForTokensFunction : torch::autograd::Function<HeadsForTokensFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& out, const ExchangeCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    return GiveTokens(out, call).flatten(1);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ExchangeCall>(context);
    return {GiveHeads(grads[0].contiguous().unflatten(1, {call.group->size(), -1}), call), at::Tensor()};
  }
};

}  // namespace

HeadCounts HeadsOfRank(HeadCounts counts, int ranks) {
  TORCH_CHECK(counts.heads % ranks == 0, counts.heads, " heads of a rank do not divide over ", ranks,
              " context-parallel ranks, as an exchange of tokens for heads needs");
  return {counts.heads / ranks, std::lcm(counts.groups, int64_t{ranks}) / ranks};
}

at::Tensor TokensForHeads(const at::Tensor& qkv, const ContextMap& map, HeadCounts counts, const comm::CommPtr& group) {
  return TokensForHeadsFunction::apply(qkv, ExchangeCall{group, counts, map.to_whole, map.to_ranks});
}

at::Tensor HeadsForTokens(const at::Tensor& out, const ContextMap& map, const comm::CommPtr& group) {
  return HeadsForTokensFunction::apply(out, ExchangeCall{group, {}, map.to_whole, map.to_ranks});
}

}  // namespace slipway::engine::nn::internal
