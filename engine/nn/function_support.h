// What the autograd Functions of this folder share.
#ifndef SLIPWAY_ENGINE_NN_FUNCTION_SUPPORT_H_
#define SLIPWAY_ENGINE_NN_FUNCTION_SUPPORT_H_

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "engine/nn/param_handle.h"

namespace slipway::engine::nn::internal {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The non-tensor arguments of a call, carried from forward to backward. It lives as long as the graph's node, saved
// tensors only until the backward: an activation in it must be moved out there.
template <typename Call>
struct CallHolder : torch::CustomClassHolder {
  explicit CallHolder(Call value) : call(std::move(value)) {}
  Call call;
};

template <typename Call>
void SaveCall(AutogradContext* context, const Call& call) {
  context->saved_data["call"] = at::IValue::make_capsule(c10::make_intrusive<CallHolder<Call>>(call));
}

template <typename Call>
Call& SavedCall(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<CallHolder<Call>>(context->saved_data["call"].toCapsule())->call;
}

inline bool WantsGrad(const ParamPtr& param) { return param && param->requires_grad(); }

// Tells the handles of a use that will have a backward, and returns what makes sure that it has one: a tensor that
// requires grad, for the Function to take as an input, when its activation input does not.
inline std::optional<at::Tensor> BeginUse(const at::Tensor& x, std::initializer_list<ParamPtr> params) {
  if (!at::GradMode::is_enabled()) return std::nullopt;
  bool wanted = false;
  for (const ParamPtr& param : params) {
    if (!WantsGrad(param)) continue;
    param->RegisterUse();
    wanted = true;
  }
  if (!wanted || x.requires_grad()) return std::nullopt;
  return at::empty({0}).requires_grad_();
}

// The compute weight, held for one use.
class AcquiredWeight {
 public:
  explicit AcquiredWeight(const ParamPtr& param) : param_(param) {
    if (param_) weight_ = param_->Acquire();
  }
  ~AcquiredWeight() {
    if (param_) param_->Release();
  }
  AcquiredWeight(const AcquiredWeight&) = delete;
  AcquiredWeight& operator=(const AcquiredWeight&) = delete;
  const at::Tensor& operator*() const { return weight_; }
  const at::Tensor* operator->() const { return &weight_; }

 private:
  ParamPtr param_;
  at::Tensor weight_;
};

// Calls write(main_grad, accumulate) between BeginGrad and EndGrad; nothing for a frozen or absent parameter.
template <typename Write>
void WriteGrad(const ParamPtr& param, const Write& write) {
  if (!WantsGrad(param)) return;
  const GradTarget target = param->BeginGrad();
  write(target.main_grad, target.accumulate);
  param->EndGrad();
}

}  // namespace slipway::engine::nn::internal

#endif  // SLIPWAY_ENGINE_NN_FUNCTION_SUPPORT_H_
