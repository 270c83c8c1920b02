#include "engine/nn/local_param_handle.h"

#include <ATen/ATen.h>

#include <limits>
#include <utility>

namespace slipway::engine::nn {

LocalParamHandle::LocalParamHandle(std::string name, at::Tensor weight, bool requires_grad)
    : name_(std::move(name)), weight_(std::move(weight)), requires_grad_(requires_grad) {}

at::Tensor LocalParamHandle::Acquire() {
  ++held_;
  return weight_;
}

GradTarget LocalParamHandle::BeginGrad() {
  TORCH_CHECK(requires_grad_, name_, " is frozen");
  TORCH_CHECK(ended_ < registered_, name_, ": a gradient of a use that was not registered");
  if (!main_grad_.defined()) {
    main_grad_ =
        at::full_like(weight_, std::numeric_limits<double>::quiet_NaN(),
                      weight_.options().dtype(weight_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  }
  return {main_grad_, !std::exchange(stale_, false)};
}

}  // namespace slipway::engine::nn
