#include "engine/parallel/moe_layer.h"

#include <ATen/ATen.h>

#include <utility>

#include "engine/nn/moe_dispatch.h"
#include "engine/nn/moe_functions.h"
#include "engine/nn/moe_router.h"

namespace slipway::engine::parallel {
namespace {

using nn::ForwardContext;

class MoeLayer final : public nn::Layer {
 public:
  MoeLayer(const arch::MoeArch& moe, int layer, MoeParts parts, const comm::ParallelGroups& groups,
           const nn::TensorParallel& tp)
      : moe_(moe),
        layer_(layer),
        tp_(tp),
        parts_(std::move(parts)),
        balance_(moe, {.sample = groups.tp_cp, .batch = groups.tp_dp_cp}),
        dispatcher_(nn::MakeDispatcher(moe, groups.etp_ep, groups.etp->size())) {}

  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    const at::Tensor sample_index = SamplesOf(x, context);
    at::Tensor logits = nn::RouterLogits(x, parts_.router);
    nn::RouterLosses losses;
    // Evaluation, generation and the first pass of recomputation train nothing.
    const bool trains = context.training && at::GradMode::is_enabled();
    if (trains) {
      const at::Tensor membership =
          nn::SampleMembership(context.layout->row_samples, sample_index, logits.scalar_type());
      losses = balance_.Losses(logits, membership, context.step);
    }
    if (losses.z.defined()) logits = nn::AttachLoss(logits, losses.z, context.sample_loss_scale);
    nn::Routing routing = nn::ChooseExperts(logits, Bias(), sample_index != nn::kPaddingSample, moe_);
    if (losses.balance.defined()) {
      routing.probs = nn::AttachLoss(routing.probs, losses.balance, context.sample_loss_scale);
    }
    const at::Tensor chosen = routing.experts;
    int64_t capacity = 0;
    if (moe_.capacity_factor.has_value()) {
      capacity = nn::ExpertCapacity(x.size(0), moe_);
      routing = nn::DropOverCapacity(routing, capacity, moe_);
    }
    if (trains) Count(chosen, losses, context, routing);
    const nn::Dispatched sent = dispatcher_->Dispatch(x, routing, moe_.pad_to_capacity ? capacity : 0);
    const at::Tensor out = dispatcher_->Combine(RunExperts(sent), sent);
    return parts_.shared_down == nullptr ? out : out + SharedExperts(x, context);
  }

 private:
  // Of the tokens that this rank routes. Under sequence parallelism they are its part of the layout's; a generation's
  // few tokens, and a model that is only run forward, are routed by every tensor-parallel rank alike.
  at::Tensor SamplesOf(const at::Tensor& x, const ForwardContext& context) const {
    const nn::SequenceLayout& layout = *context.layout;
    if (x.size(0) == layout.num_tokens) {
      TORCH_CHECK(tp_.group->size() == 1 || !at::GradMode::is_enabled(), "a model with experts is trained over ",
                  tp_.group->size(), " tensor-parallel ranks with sequence parallelism alone");
      return layout.sample_index;
    }
    return nn::SliceOfTokens(layout, tp_.group->rank(), tp_.group->size()).sample_index;
  }

  at::Tensor Bias() const {
    if (!parts_.bias) return {};
    const at::Tensor bias = parts_.bias->Acquire().clone();
    parts_.bias->Release();
    return bias;
  }

  at::Tensor RunExperts(const nn::Dispatched& sent) const {
    const at::Tensor inner = nn::SwiGlu(nn::GroupedLinear(sent.rows, parts_.gate_up, sent.ends));
    return nn::GroupedLinear((inner * sent.probs).to(inner.scalar_type()), parts_.down, sent.ends);
  }

  at::Tensor SharedExperts(const at::Tensor& x, const ForwardContext& context) const {
    const at::Tensor inner = nn::SwiGlu(parts_.shared_gate_up->Forward(x, context));
    const at::Tensor shared = parts_.shared_down->Forward(inner, context);
    if (!parts_.shared_gate) return shared;
    return (shared * at::sigmoid(nn::RouterLogits(x, parts_.shared_gate))).to(shared.scalar_type());
  }

  // The load, for the experts' bias and for the step's statistics.
  void Count(const at::Tensor& chosen, const nn::RouterLosses& losses, const ForwardContext& context,
             nn::Routing& routing) const {
    if (!parts_.bias && context.routing == nullptr) return;
    const at::NoGradGuard no_grad;
    const at::Tensor counts = nn::CountSlots(chosen, moe_.num_experts, at::kDouble);
    if (parts_.bias) {
      // In place of a gradient: E times what an expert has above the mean. Whole numbers, so that an even load is 0.
      const at::Tensor excess = counts * static_cast<double>(moe_.num_experts) - counts.sum();
      const at::AutoGradMode with_grad(true);
      routing.probs = nn::AttachCount(routing.probs, excess, parts_.bias);
    }
    if (context.routing == nullptr) return;
    at::Tensor row = context.routing->table[layer_];
    row.narrow(0, 0, moe_.num_experts).add_(counts);
    row[moe_.num_experts].add_((routing.experts == moe_.num_experts).sum() - (chosen == moe_.num_experts).sum());
    if (losses.balance.defined()) row[moe_.num_experts + 1].add_(losses.balance.detach());
    if (losses.z.defined()) row[moe_.num_experts + 2].add_(losses.z.detach());
  }

  arch::MoeArch moe_;
  int layer_;
  nn::TensorParallel tp_;
  MoeParts parts_;
  nn::LoadBalance balance_;
  std::unique_ptr<nn::TokenDispatcher> dispatcher_;
};

}  // namespace

nn::LayerPtr MakeMoeLayer(const arch::MoeArch& moe, int layer, MoeParts parts, const comm::ParallelGroups& groups,
                          const nn::TensorParallel& tp) {
  return std::make_unique<MoeLayer>(moe, layer, std::move(parts), groups, tp);
}

}  // namespace slipway::engine::parallel
