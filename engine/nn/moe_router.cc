#include "engine/nn/moe_router.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn {
namespace {

using arch::LoadBalancing;
using arch::MoeArch;
using arch::RouterScore;

constexpr double kSumEpsilon = 1e-20;

at::Tensor Normalised(const at::Tensor& scores) { return scores / (scores.sum(-1, /*keepdim=*/true) + kSumEpsilon); }

// Scores outside of the group_topk best groups of experts become −inf. A group is as good as the sum of its best
// topk / group_topk scores.
at::Tensor LimitToGroups(const at::Tensor& scores, const MoeArch& moe) {
  if (moe.num_groups == 0) return scores;
  const int64_t tokens = scores.size(0), in_group = moe.num_experts / moe.num_groups;
  const at::Tensor grouped = scores.view({tokens, moe.num_groups, in_group});
  const at::Tensor group_scores = std::get<0>(grouped.topk(moe.topk / moe.group_topk, -1)).sum(-1);
  const at::Tensor best = std::get<1>(group_scores.topk(moe.group_topk, -1));
  const at::Tensor allowed = at::zeros(group_scores.sizes(), scores.options().dtype(at::kBool)).scatter_(1, best, true);
  return grouped.masked_fill(allowed.logical_not().unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .view(scores.sizes());
}

at::Tensor Choose(const at::Tensor& logits, const at::Tensor& bias, const MoeArch& moe) {
  const at::NoGradGuard no_grad;
  at::Tensor scores = logits.detach();
  if (moe.score_function == RouterScore::kSigmoid) {
    scores = at::sigmoid(scores);
    if (bias.defined()) scores = scores + bias.to(scores.scalar_type());
  } else if (moe.pre_softmax) {
    scores = at::softmax(scores, -1);
  }
  return std::get<1>(LimitToGroups(scores, moe).topk(moe.topk, -1));
}

at::Tensor ProbsOf(const at::Tensor& logits, const at::Tensor& experts, const MoeArch& moe) {
  if (moe.score_function == RouterScore::kSigmoid) {
    const at::Tensor scores = at::sigmoid(logits).gather(1, experts);
    return moe.topk > 1 ? Normalised(scores) : scores;
  }
  if (moe.pre_softmax) return at::softmax(logits, -1).gather(1, experts);
  return at::softmax(logits.gather(1, experts), -1);
}

Routing Emptied(const Routing& routing, const at::Tensor& empty, int64_t num_experts) {
  return {routing.experts.masked_fill(empty, num_experts), routing.probs.masked_fill(empty, 0)};
}

// Each slot's place among those of its expert, by the drop policy: int64 [T · k].
at::Tensor PlaceAtExpert(const Routing& routing, const MoeArch& moe) {
  const at::Tensor experts = routing.experts.reshape(-1);
  at::Tensor order;  // the slots, those to keep first
  if (moe.drop_policy == arch::DropPolicy::kProbs) {
    order = std::get<1>(at::sort(routing.probs.detach().reshape(-1), /*stable=*/true, /*dim=*/0, /*descending=*/true));
    order = order.index_select(
        0, std::get<1>(at::sort(experts.index_select(0, order), /*stable=*/true, /*dim=*/0, /*descending=*/false)));
  } else {
    order = std::get<1>(at::sort(experts, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  }
  const at::Tensor sorted = experts.index_select(0, order);
  const at::Tensor begins = at::searchsorted(sorted, at::arange(moe.num_experts + 1, sorted.options()));
  const at::Tensor places = at::arange(order.size(0), order.options()) - begins.index_select(0, sorted);
  return at::empty_like(order).scatter_(0, order, places);
}

}  // namespace

Routing ChooseExperts(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& real, const MoeArch& moe) {
  Routing routing;
  routing.experts = Choose(logits, bias, moe);
  routing.probs = ProbsOf(logits, routing.experts, moe);
  if (moe.topk_scaling_factor != 1) routing.probs = routing.probs * moe.topk_scaling_factor;
  return Emptied(routing, real.logical_not().unsqueeze(1), moe.num_experts);
}

int64_t ExpertCapacity(int64_t tokens, const MoeArch& moe) {
  const double even = static_cast<double>(tokens * moe.topk) / static_cast<double>(moe.num_experts);
  return static_cast<int64_t>(std::ceil(even * *moe.capacity_factor));
}

Routing DropOverCapacity(const Routing& routing, int64_t capacity, const MoeArch& moe) {
  const at::Tensor over = (PlaceAtExpert(routing, moe) >= capacity).view(routing.experts.sizes());
  return Emptied(routing, over, moe.num_experts);
}

at::Tensor CountSlots(const at::Tensor& experts, int64_t num_experts, at::ScalarType type) {
  const at::Tensor slots = experts.reshape(-1);
  const at::Tensor counts = at::zeros({num_experts + 1}, slots.options().dtype(type));
  return counts.index_add(0, slots, at::ones({slots.size(0)}, counts.options())).narrow(0, 0, num_experts);
}

at::Tensor SampleMembership(const at::Tensor& row_samples, const at::Tensor& sample_index, at::ScalarType type) {
  const at::Tensor same = row_samples.unsqueeze(1) == sample_index.unsqueeze(0);
  return same.logical_and(sample_index != kPaddingSample).to(type);
}

LoadBalance::LoadBalance(const MoeArch& moe, LoadBalanceGroups groups) : moe_(moe), groups_(std::move(groups)) {}

RouterLosses LoadBalance::Losses(const at::Tensor& logits, const at::Tensor& membership, int64_t step) {
  RouterLosses losses;
  const bool balances = moe_.load_balancing != LoadBalancing::kNone && moe_.aux_loss_coeff > 0;
  const bool by_sample = moe_.load_balancing == LoadBalancing::kSequence;
  if (!balances && moe_.z_loss_coeff == 0) return losses;
  const bool softmax = moe_.score_function == RouterScore::kSoftmax;
  at::Tensor scores, choice;
  if (balances) {
    scores = softmax ? at::softmax(logits, -1) : Normalised(at::sigmoid(logits));
    const at::NoGradGuard no_grad;
    choice = at::zeros_like(scores).scatter_(1, std::get<1>(scores.detach().topk(moe_.topk, -1)), 1.0);
  }
  at::Tensor tokens = membership.sum(1, /*keepdim=*/true);  // of each sample, here; then on all ranks
  if ((balances && by_sample) || moe_.z_loss_coeff > 0) {
    groups_.sample->AllReduce(tokens, comm::ReduceOp::kSum)->Wait();
    tokens.clamp_min_(1);
  }
  if (balances) {
    losses.balance =
        by_sample ? SequenceLoss(scores, choice, membership, tokens) : BatchLoss(scores, choice, membership, step);
  }
  if (moe_.z_loss_coeff > 0) {
    const at::Tensor squares = at::logsumexp(logits, {-1}).square().unsqueeze(1);
    losses.z = (membership.matmul(squares) / tokens).sum() * moe_.z_loss_coeff;
  }
  return losses;
}

at::Tensor LoadBalance::SequenceLoss(const at::Tensor& scores, const at::Tensor& choice, const at::Tensor& membership,
                                     const at::Tensor& tokens) const {
  const at::Tensor counts = membership.matmul(choice);
  groups_.sample->AllReduce(counts, comm::ReduceOp::kSum)->Wait();
  const double factor = moe_.aux_loss_coeff * static_cast<double>(moe_.num_experts) / static_cast<double>(moe_.topk);
  return (membership.matmul(scores) * counts / tokens.square()).sum() * factor;
}

at::Tensor LoadBalance::BatchLoss(const at::Tensor& scores, const at::Tensor& choice, const at::Tensor& membership,
                                  int64_t step) {
  const bool global = moe_.load_balancing == LoadBalancing::kGlobalBatch;
  const comm::CommPtr& group = global ? groups_.batch : groups_.sample;
  // Counts of the experts, tokens, and samples (of which each rank of the sample group counts its part).
  const at::Tensor real = membership.sum(0, /*keepdim=*/true);
  const at::Tensor tokens_of_sample = membership.sum(1);
  at::Tensor all_tokens = tokens_of_sample.clone();
  groups_.sample->AllReduce(all_tokens, comm::ReduceOp::kSum)->Wait();
  const at::Tensor samples = (tokens_of_sample / all_tokens.clamp_min(1)).sum().view({1});
  at::Tensor sums = at::cat({real.matmul(choice).view(-1), real.sum().view({1}), samples});
  group->AllReduce(sums, comm::ReduceOp::kSum)->Wait();
  at::Tensor counts = sums.narrow(0, 0, moe_.num_experts);
  if (global) {
    if (std::exchange(counted_step_, step) != step) {
      counted_batches_ = 0;
      running_counts_ = at::zeros_like(counts);
    }
    ++counted_batches_;
    running_counts_.add_(counts);
    counts = running_counts_ / static_cast<double>(counted_batches_);
  }
  const double factor = moe_.aux_loss_coeff * static_cast<double>(moe_.num_experts) / static_cast<double>(moe_.topk);
  const at::Tensor tokens = sums[moe_.num_experts].clamp_min(1);
  return (real.matmul(scores).view(-1) * counts).sum() * (sums[moe_.num_experts + 1] / tokens.square()) * factor;
}

}  // namespace slipway::engine::nn
