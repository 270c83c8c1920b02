#include "engine/parallel/flat_param.h"

#include <c10/util/Exception.h>

#include <utility>

namespace slipway::engine::parallel {

FlatParam::FlatParam(std::string name, int bucket, at::Tensor weight, at::Tensor main_grad, GradListener* listener)
    : name_(std::move(name)),
      bucket_(bucket),
      weight_(std::move(weight)),
      main_grad_(std::move(main_grad)),
      listener_(listener) {}

nn::GradTarget FlatParam::BeginGrad() {
  TORCH_CHECK(!sealed_, "gradient of ", name_, " after its reduction began: a backward ran after the last micro-batch");
  return {main_grad_, !std::exchange(stale_, false)};
}

void FlatParam::EndGrad() {
  TORCH_CHECK(pending_uses_ > 0, "gradient of ", name_, " without a registered use");
  if (--pending_uses_ == 0 && listener_ != nullptr) listener_->UsesEnded(*this);
}

void FlatParam::BeginStep() {
  pending_uses_ = 0;
  stale_ = true;
  sealed_ = false;
}

void FlatParam::Seal() {
  sealed_ = true;
  if (std::exchange(stale_, false) && main_grad_.defined()) main_grad_.zero_();
}

}  // namespace slipway::engine::parallel
