#include "engine/nn/functions.h"

#include "engine/nn/function_support.h"
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
using internal::WriteGrad;
using Anchor = std::optional<at::Tensor>;

// --- Linear -----------------------------------------------------------------
struct LinearCall {
  ParamPtr weight, bias;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LinearCall& call, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({x});
    const AcquiredWeight weight(call.weight), bias(call.bias);
    return call.bias ? at::addmm(*bias, x, weight->t()) : at::mm(x, weight->t());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<LinearCall>(context);
    const at::Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::mm(dy, *AcquiredWeight(call.weight));
    WriteGrad(call.weight,
              [&](const at::Tensor& main_grad, bool accumulate) { ops::MmAccumulate(main_grad, dy, x, accumulate); });
    WriteGrad(call.bias, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::BiasGradAccumulate(main_grad, dy, accumulate);
    });
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// --- Embedding -----------------------------------------------------------------
struct EmbeddingCall {
  ParamPtr weight;
  int64_t shard;
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids, const EmbeddingCall& call, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({ids});
    const AcquiredWeight weight(call.weight);
    return ops::Embedding(*weight, ids, call.shard * weight->size(0));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<EmbeddingCall>(context);
    WriteGrad(call.weight, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::EmbeddingBackward(grads[0].contiguous(), context->get_saved_variables()[0], call.shard * main_grad.size(0),
                             main_grad, accumulate);
    });
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// --- RMS norm -----------------------------------------------------------------
struct NormCall {
  ParamPtr weight;
  double epsilon;
};

at::Tensor NormBackward(const NormCall& call, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                        const ops::OptionalTensor& residual_grad) {
  const AcquiredWeight weight(call.weight);
  if (!WantsGrad(call.weight)) {
    return ops::RmsNormBackward(dy.contiguous(), x, *weight, rstd, residual_grad, std::nullopt, false);
  }
  at::Tensor dx;
  WriteGrad(call.weight, [&](const at::Tensor& main_grad, bool accumulate) {
    dx = ops::RmsNormBackward(dy.contiguous(), x, *weight, rstd, residual_grad, main_grad, accumulate);
  });
  return dx;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const NormCall& call, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, rstd] = ops::RmsNorm(x, *AcquiredWeight(call.weight), call.epsilon);
    SaveCall(context, call);
    context->save_for_backward({x, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dx = NormBackward(SavedCall<NormCall>(context), grads[0], saved[0], saved[1], std::nullopt);
    return {context->needs_input_grad(0) ? dx : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& residual, const at::Tensor& y,
                               const NormCall& call, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [sum, normed, rstd] = ops::AddRmsNorm(residual, y, *AcquiredWeight(call.weight), call.epsilon);
    SaveCall(context, call);
    context->save_for_backward({sum, rstd});
    context->set_materialize_grads(false);
    return {sum, normed};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dnormed = grads[1].defined() ? grads[1] : at::zeros_like(saved[0]);
    ops::OptionalTensor dsum;
    if (grads[0].defined()) dsum = grads[0].contiguous();
    const at::Tensor dx = NormBackward(SavedCall<NormCall>(context), dnormed, saved[0], saved[1], dsum);
    return {context->needs_input_grad(0) ? dx : at::Tensor(), context->needs_input_grad(1) ? dx : at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

// --- SwiGLU -----------------------------------------------------------------
struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({gate_up});
    return ops::SwiGlu(gate_up);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return {ops::SwiGluBackward(grads[0].contiguous(), context->get_saved_variables()[0])};
  }
};

// --- Residual dropout -----------------------------------------------------------------
struct AddDropoutFunction : torch::autograd::Function<AddDropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& residual, const at::Tensor& y,
                            const at::Tensor& sample_index, const at::Tensor& positions, const DropoutSite& site) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, site);
    context->save_for_backward({sample_index, positions});
    return ops::AddDropout(residual, y, sample_index, positions, site.probability, static_cast<int64_t>(site.seed),
                           site.step, site.site);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& site = SavedCall<DropoutSite>(context);
    const variable_list saved = context->get_saved_variables();
    at::Tensor dy;
    if (context->needs_input_grad(1)) {
      dy = ops::DropoutBackward(grads[0].contiguous(), saved[0], saved[1], site.probability,
                                static_cast<int64_t>(site.seed), site.step, site.site);
    }
    return {grads[0], dy, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Linear(const at::Tensor& x, const ParamPtr& weight, const ParamPtr& bias) {
  const Anchor anchor = BeginUse(x, {weight, bias});
  return LinearFunction::apply(x, LinearCall{weight, bias}, anchor);
}

at::Tensor Embedding(const at::Tensor& ids, const ParamPtr& weight, int64_t shard) {
  const Anchor anchor = BeginUse(ids, {weight});
  return EmbeddingFunction::apply(ids, EmbeddingCall{weight, shard}, anchor);
}

at::Tensor RmsNorm(const at::Tensor& x, const ParamPtr& weight, double epsilon) {
  const Anchor anchor = BeginUse(x, {weight});
  return RmsNormFunction::apply(x, NormCall{weight, epsilon}, anchor);
}

Joined AddRmsNorm(const at::Tensor& residual, const at::Tensor& y, const ParamPtr& weight, double epsilon) {
  const Anchor anchor = BeginUse(residual.requires_grad() ? residual : y, {weight});
  variable_list outputs = AddRmsNormFunction::apply(residual, y, NormCall{weight, epsilon}, anchor);
  return {std::move(outputs[0]), std::move(outputs[1])};
}

at::Tensor AddDropout(const at::Tensor& residual, const at::Tensor& y, const SequenceLayout& layout,
                      const DropoutSite& dropout) {
  if (dropout.probability == 0) return residual + y;
  return AddDropoutFunction::apply(residual, y, layout.sample_index, layout.positions, dropout);
}

at::Tensor SwiGlu(const at::Tensor& gate_up) { return SwiGluFunction::apply(gate_up); }

}  // namespace slipway::engine::nn
