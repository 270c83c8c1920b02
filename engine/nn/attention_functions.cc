// Rotary embedding and attention over packed q | k | v.
#include <cmath>
#include <vector>

#include "engine/nn/function_support.h"
#include "engine/nn/functions.h"
#include "engine/ops/ops.h"

namespace slipway::engine::nn {
namespace {

using internal::AcquiredWeight;
using internal::AutogradContext;
using internal::BeginUse;
using internal::SaveCall;
using internal::SavedCall;
using internal::variable_list;
using internal::WantsGrad;

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* context, at::Tensor qkv, const at::Tensor& positions,
                            const at::Tensor& inverse_frequencies, HeadCounts counts) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, counts);
    context->save_for_backward({positions, inverse_frequencies});
    ops::Rope(qkv, positions, inverse_frequencies, counts.heads, counts.groups, /*inverse=*/false);
    context->mark_dirty({qkv});
    return qkv;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& counts = SavedCall<HeadCounts>(context);
    const variable_list saved = context->get_saved_variables();
    // The gradient may be shared with another reader; the copy is a small part of a layer's traffic.
    at::Tensor dqkv = grads[0].clone(at::MemoryFormat::Contiguous);
    ops::Rope(dqkv, saved[0], saved[1], counts.heads, counts.groups, /*inverse=*/true);
    return {dqkv, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct QkNormRopeCall {
  ParamPtr q_weight, k_weight;
  double epsilon;
  HeadCounts counts;
};

struct QkNormRopeFunction : torch::autograd::Function<QkNormRopeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& inverse_frequencies, const QkNormRopeCall& call,
                            const std::optional<at::Tensor>&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const AcquiredWeight q_weight(call.q_weight), k_weight(call.k_weight);
    auto [out, rstd] = ops::QkNormRope(qkv, *q_weight, *k_weight, call.epsilon, positions, inverse_frequencies,
                                       call.counts.heads, call.counts.groups);
    SaveCall(context, call);
    context->save_for_backward({qkv, positions, inverse_frequencies, rstd});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<QkNormRopeCall>(context);
    const variable_list saved = context->get_saved_variables();
    const AcquiredWeight q_weight(call.q_weight), k_weight(call.k_weight);
    GradTarget q_target{}, k_target{};
    if (WantsGrad(call.q_weight)) q_target = call.q_weight->BeginGrad();
    if (WantsGrad(call.k_weight)) k_target = call.k_weight->BeginGrad();
    const auto optional = [](const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
    at::Tensor dqkv =
        ops::QkNormRopeBackward(grads[0].contiguous(), saved[0], *q_weight, *k_weight, saved[3], saved[1], saved[2],
                                call.counts.heads, call.counts.groups, optional(q_target.main_grad),
                                q_target.accumulate, optional(k_target.main_grad), k_target.accumulate);
    if (WantsGrad(call.q_weight)) call.q_weight->EndGrad();
    if (WantsGrad(call.k_weight)) call.k_weight->EndGrad();
    return {context->needs_input_grad(0) ? dqkv : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// The rows on the host; a copy, because a backward may outlive its layout.
struct AttentionCall {
  std::vector<int64_t> row_starts;
  int64_t max_row_length;
  bool uniform;
  HeadCounts counts;
  double scale;
  int64_t first_head = 0;
  DropoutSite dropout;
};

AttentionCall MakeAttentionCall(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts) {
  TORCH_CHECK(layout.num_tokens == qkv.size(0) && counts.groups > 0 && counts.heads % counts.groups == 0 &&
                  qkv.size(1) % (counts.heads + 2 * counts.groups) == 0,
              "attention of ", counts.heads, " heads in ", counts.groups, " groups over ", layout.num_tokens,
              " tokens does not fit q|k|v of shape ", qkv.sizes());
  const int64_t head_dim = qkv.size(1) / (counts.heads + 2 * counts.groups);
  return {.row_starts = {layout.cu_seqlens_host.begin(), layout.cu_seqlens_host.end()},
          .max_row_length = layout.max_row_length,
          .uniform = layout.uniform,
          .counts = counts,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim)),
          .dropout = {}};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                            const AttentionCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [out, lse] = ops::Attention(qkv, cu_seqlens, call.row_starts, call.max_row_length, call.uniform,
                                     call.counts.heads, call.counts.groups, call.scale);
    SaveCall(context, call);
    context->save_for_backward({qkv, cu_seqlens, out, lse});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<AttentionCall>(context);
    const variable_list saved = context->get_saved_variables();
    return {
        ops::AttentionBackward(grads[0].contiguous(), saved[0], saved[2], saved[3], saved[1], call.row_starts,
                               call.max_row_length, call.uniform, call.counts.heads, call.counts.groups, call.scale),
        at::Tensor(), at::Tensor()};
  }
};

struct AttentionDropoutFunction : torch::autograd::Function<AttentionDropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& sample_index,
                            const at::Tensor& positions, const AttentionCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({qkv, sample_index, positions});
    return ops::AttentionDropout(qkv, sample_index, positions, call.row_starts, call.counts.heads, call.counts.groups,
                                 call.scale, call.first_head, call.dropout.probability,
                                 static_cast<int64_t>(call.dropout.seed), call.dropout.step, call.dropout.site);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<AttentionCall>(context);
    const variable_list saved = context->get_saved_variables();
    return {ops::AttentionDropoutBackward(grads[0].contiguous(), saved[0], saved[1], saved[2], call.row_starts,
                                          call.counts.heads, call.counts.groups, call.scale, call.first_head,
                                          call.dropout.probability, static_cast<int64_t>(call.dropout.seed),
                                          call.dropout.step, call.dropout.site),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Rope(const at::Tensor& qkv, const SequenceLayout& layout, const at::Tensor& inverse_frequencies,
                HeadCounts counts) {
  return RopeFunction::apply(qkv, layout.positions, inverse_frequencies, counts);
}

at::Tensor QkNormRope(const at::Tensor& qkv, const ParamPtr& q_weight, const ParamPtr& k_weight, double epsilon,
                      const SequenceLayout& layout, const at::Tensor& inverse_frequencies, HeadCounts counts) {
  const std::optional<at::Tensor> anchor = BeginUse(qkv, {q_weight, k_weight});
  return QkNormRopeFunction::apply(qkv, layout.positions, inverse_frequencies,
                                   QkNormRopeCall{q_weight, k_weight, epsilon, counts}, anchor);
}

at::Tensor Attention(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts) {
  return AttentionFunction::apply(qkv, layout.cu_seqlens, MakeAttentionCall(qkv, layout, counts));
}

at::Tensor AttentionWithDropout(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts,
                                int64_t first_head, const DropoutSite& dropout) {
  AttentionCall call = MakeAttentionCall(qkv, layout, counts);
  call.first_head = first_head;
  call.dropout = dropout;
  return AttentionDropoutFunction::apply(qkv, layout.sample_index, layout.positions, call);
}

}  // namespace slipway::engine::nn
