#include "engine/nn/moe_dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/nn/comm_functions.h"

namespace slipway::engine::nn {
namespace {

using comm::CommPtr;
using comm::ReduceOp;

// The slots of some tokens in the order of their experts.
struct SlotOrder {
  at::Tensor slots;   // int64 [R]: the slot of each row, −1 for a row that only fills up
  at::Tensor places;  // int64 [S]: the row of each slot, −1 where it has none
  at::Tensor ends;    // int32 [n]
};

// experts int64 [S] of values below n, or n for slots that go nowhere. At most `bound` slots have an expert.
SlotOrder OrderSlots(const at::Tensor& experts, int64_t n, int64_t bound) {
  const auto [sorted, order] = at::sort(experts, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor ends = at::searchsorted(sorted, at::arange(n, sorted.options()), /*out_int32=*/true, /*right=*/true);
  const at::Tensor places = at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  int64_t rows = std::min(bound, order.size(0));
  if (experts.is_cpu()) rows = ends[n - 1].item<int32_t>();  // exactly; asking a GPU would wait for it
  return {order.narrow(0, 0, rows), places.masked_fill(experts == n, -1), ends};
}

// As OrderSlots, with `capacity` rows for every expert. No expert has more slots.
SlotOrder OrderSlotsPadded(const at::Tensor& experts, int64_t n, int64_t capacity) {
  const SlotOrder compact = OrderSlots(experts, n, experts.size(0));
  const at::Tensor ends = compact.ends.to(at::kLong);
  const at::Tensor begins = at::constant_pad_nd(ends.narrow(0, 0, n - 1), {1, 1});  // a slot without expert has any
  const at::Tensor padded = compact.places - begins.index_select(0, experts) + experts * capacity;
  const int64_t rows = n * capacity;
  // Slots without expert all fall on one more row, which is cut off.
  const at::Tensor target = padded.masked_fill(experts == n, rows);
  const at::Tensor slots =
      at::full({rows + 1}, -1, experts.options()).scatter_(0, target, at::arange(experts.size(0), experts.options()));
  return {slots.narrow(0, 0, rows), padded.masked_fill(experts == n, -1),
          at::arange(capacity, rows + 1, capacity, experts.options().dtype(at::kInt))};
}

at::Tensor TokensOfSlots(const at::Tensor& slots, int64_t topk) {
  return at::div(slots, topk, "floor");  // −1 stays −1
}

class AllGatherDispatcher final : public TokenDispatcher {
 public:
  AllGatherDispatcher(const arch::MoeArch& moe, CommPtr group, int etp)
      : experts_(moe.num_experts), topk_(moe.topk), group_(std::move(group)) {
    local_experts_ = experts_ * etp / group_->size();
    first_expert_ = group_->rank() / etp * local_experts_;
  }

  Dispatched Dispatch(const at::Tensor& x, const Routing& routing, int64_t capacity) override {
    const auto [tokens, expert_rows] = LargestOfEveryRank(x, capacity);
    const at::Tensor all_x = GatherTokens(PadTokens(x, tokens, 0), group_);
    const at::Tensor all_probs = GatherTokens(PadTokens(routing.probs, tokens, 0), group_);
    const at::Tensor all_experts = Gathered(PadTokens(routing.experts, tokens, static_cast<double>(experts_)));
    const at::Tensor local = all_experts.view(-1) - first_expert_;
    const at::Tensor mine = at::where((local >= 0).logical_and(local < local_experts_), local,
                                      at::scalar_tensor(local_experts_, local.options()));
    const int64_t bound = all_x.size(0) * std::min(topk_, local_experts_);
    const SlotOrder order = capacity > 0 ? OrderSlotsPadded(mine, local_experts_, expert_rows * group_->size())
                                         : OrderSlots(mine, local_experts_, bound);
    Dispatched sent;
    sent.ends = order.ends;
    sent.tokens = x.size(0);
    sent.from_tokens = {TokensOfSlots(order.slots, topk_), order.places.view({-1, topk_}), capacity > 0};
    sent.rows = SpreadRows(all_x, sent.from_tokens);
    sent.probs = SpreadRows(all_probs.reshape({-1, 1}), {order.slots, order.places.view({-1, 1}), capacity > 0});
    return sent;
  }

  at::Tensor Combine(const at::Tensor& y, const Dispatched& sent) override {
    return ReduceScatterTokens(CollectRows(y, sent.from_tokens), group_).narrow(0, 0, sent.tokens);
  }

 private:
  // Tokens and capacity. On CUDA a micro-batch has the same number of tokens on every rank, always; CPU jobs round to
  // smaller ones.
  std::pair<int64_t, int64_t> LargestOfEveryRank(const at::Tensor& x, int64_t capacity) const {
    if (!x.is_cpu() || group_->size() == 1) return {x.size(0), capacity};
    at::Tensor most = at::tensor({x.size(0), capacity}, at::kLong);
    group_->AllReduce(most, ReduceOp::kMax)->Wait();
    return {most[0].item<int64_t>(), most[1].item<int64_t>()};
  }
  static at::Tensor PadTokens(const at::Tensor& x, int64_t tokens, double value) {
    return x.size(0) == tokens ? x : at::constant_pad_nd(x, {0, 0, 0, tokens - x.size(0)}, value);
  }
  at::Tensor Gathered(const at::Tensor& experts) const {
    if (group_->size() == 1) return experts;
    at::Tensor all = at::empty({group_->size() * experts.size(0), experts.size(1)}, experts.options());
    group_->AllGather(all, experts.contiguous())->Wait();
    return all;
  }

  int64_t experts_, topk_, local_experts_, first_expert_;
  CommPtr group_;
};

class AllToAllDispatcher final : public TokenDispatcher {
 public:
  AllToAllDispatcher(const arch::MoeArch& moe, CommPtr group, int etp)
      : experts_(moe.num_experts), topk_(moe.topk), etp_(etp), ep_(group->size() / etp), group_(std::move(group)) {
    local_experts_ = experts_ / ep_;
  }

  Dispatched Dispatch(const at::Tensor& x, const Routing& routing, int64_t capacity) override {
    const at::Tensor experts = routing.experts.view(-1);
    const bool padded = capacity > 0;
    const SlotOrder order =
        padded ? OrderSlotsPadded(experts, experts_, capacity) : OrderSlots(experts, experts_, experts.size(0));
    // counts[rank][expert]: rows that the rank sends to each slice of the expert.
    const std::vector<std::vector<int64_t>> counts =
        padded && !x.is_cpu()
            ? std::vector<std::vector<int64_t>>(group_->size(), std::vector<int64_t>(experts_, capacity))
            : ExchangeCounts(order.ends);
    Dispatched sent;
    sent.tokens = x.size(0);
    Address(order, counts[group_->rank()], experts, padded, sent);
    for (int source = 0; source < group_->size(); ++source) {
      sent.arrived.push_back(RowsFor(counts[source], group_->rank() / etp_));
    }
    RegroupByExpert(counts, x.device(), sent);

    const at::Tensor slots = sent.from_tokens.rows;
    const at::Tensor places = sent.from_tokens.copies;
    const at::Tensor probs = SpreadRows(routing.probs.reshape({-1, 1}), {slots, places.view({-1, etp_}), padded});
    sent.from_tokens = {TokensOfSlots(slots, topk_), places.view({-1, topk_ * etp_}), padded};
    const at::Tensor rows = SpreadRows(x, sent.from_tokens);
    sent.rows = SpreadRows(ExchangeRows(rows, group_, sent.sent, sent.arrived), sent.by_expert);
    sent.probs = SpreadRows(ExchangeRows(probs, group_, sent.sent, sent.arrived), sent.by_expert);
    return sent;
  }

  at::Tensor Combine(const at::Tensor& y, const Dispatched& sent) override {
    const at::Tensor back = ExchangeRows(CollectRows(y, sent.by_expert), group_, sent.arrived, sent.sent);
    return CollectRows(back, sent.from_tokens);
  }

 private:
  // Waits for the device.
  std::vector<std::vector<int64_t>> ExchangeCounts(const at::Tensor& ends) const {
    at::Tensor all = at::empty({group_->size(), experts_}, ends.options());
    group_->AllGather(all, ends)->Wait();
    const at::Tensor host = all.cpu();
    const int32_t* end = host.const_data_ptr<int32_t>();
    std::vector<std::vector<int64_t>> counts(group_->size(), std::vector<int64_t>(experts_));
    for (auto& of_rank : counts) {
      for (int64_t e = 0; e < experts_; ++e) of_rank[e] = end[e] - (e > 0 ? end[e - 1] : 0);
      end += experts_;
    }
    return counts;
  }

  // The rows for the experts of one expert-parallel rank.
  int64_t RowsFor(const std::vector<int64_t>& counts, int64_t ep_rank) const {
    const auto begin = counts.begin() + ep_rank * local_experts_;
    return std::accumulate(begin, begin + local_experts_, int64_t{0});
  }

  // The send buffer: for each expert-parallel rank its rows, once for each of its slices. Leaves the slots of its rows
  // and the rows of each slot [S, etp] in sent.from_tokens.
  void Address(const SlotOrder& order, const std::vector<int64_t>& counts, const at::Tensor& experts, bool padded,
               Dispatched& sent) const {
    std::vector<at::Tensor> pieces;
    std::vector<int64_t> shift, size;  // by expert-parallel rank: from a place in the order to the first copy's row
    int64_t begin = 0;
    for (int64_t r = 0; r < ep_; ++r) {
      const int64_t rows = RowsFor(counts, r);
      shift.push_back(begin * (etp_ - 1));
      size.push_back(rows);
      for (int64_t slice = 0; slice < etp_; ++slice) {
        pieces.push_back(order.slots.narrow(0, begin, rows));
        sent.sent.push_back(rows);
      }
      begin += rows;
    }
    sent.from_tokens.empty_rows = padded;
    sent.from_tokens.rows = etp_ == 1 ? order.slots.narrow(0, 0, begin) : at::cat(pieces);
    sent.from_tokens.copies = order.places.unsqueeze(1);
    if (etp_ == 1) return;
    const at::Tensor to = at::div(experts, local_experts_, "floor").clamp_max(ep_ - 1);
    const at::Tensor first = order.places + OnDevice(shift, experts).index_select(0, to);
    const at::Tensor slices = at::arange(etp_, experts.options()).unsqueeze(0);
    const at::Tensor rows = first.unsqueeze(1) + slices * OnDevice(size, experts).index_select(0, to).unsqueeze(1);
    sent.from_tokens.copies = rows.masked_fill((order.places < 0).unsqueeze(1), -1);
  }

  // Rows arrive source after source, each source's by expert; the experts want them expert after expert.
  void RegroupByExpert(const std::vector<std::vector<int64_t>>& counts, at::Device device, Dispatched& sent) const {
    const int64_t first = group_->rank() / etp_ * local_experts_;
    std::vector<int64_t> next;  // by source: its next row
    int64_t total = 0;
    for (const int64_t rows : sent.arrived) {
      next.push_back(total);
      total += rows;
    }
    std::vector<int64_t> rows, copies(total);
    std::vector<int32_t> ends;
    rows.reserve(total);
    for (int64_t e = first; e < first + local_experts_; ++e) {
      for (size_t source = 0; source < counts.size(); ++source) {
        for (int64_t i = 0; i < counts[source][e]; ++i) {
          copies[next[source]] = static_cast<int64_t>(rows.size());
          rows.push_back(next[source]++);
        }
      }
      ends.push_back(static_cast<int32_t>(rows.size()));
    }
    sent.by_expert.rows = at::tensor(at::ArrayRef<int64_t>(rows), at::kLong).to(device);
    sent.by_expert.copies = at::tensor(at::ArrayRef<int64_t>(copies), at::kLong).to(device).unsqueeze(1);
    sent.ends = at::tensor(at::ArrayRef<int32_t>(ends), at::kInt).to(device);
  }

  static at::Tensor OnDevice(const std::vector<int64_t>& values, const at::Tensor& like) {
    return at::tensor(at::ArrayRef<int64_t>(values), at::kLong).to(like.device());
  }

  int64_t experts_, topk_, etp_, ep_, local_experts_;
  CommPtr group_;
};

}  // namespace

std::unique_ptr<TokenDispatcher> MakeDispatcher(const arch::MoeArch& moe, CommPtr group, int etp) {
  const int64_t ep = group->size() / etp;
  TORCH_CHECK(group->size() % etp == 0 && moe.num_experts % ep == 0, moe.num_experts, " experts do not divide over a ",
              "group of ", group->size(), " ranks with ", etp, " slices of each expert");
  if (moe.dispatcher == arch::Dispatcher::kAllGather || group->size() == 1) {
    return std::make_unique<AllGatherDispatcher>(moe, std::move(group), etp);
  }
  return std::make_unique<AllToAllDispatcher>(moe, std::move(group), etp);
}

}  // namespace slipway::engine::nn
