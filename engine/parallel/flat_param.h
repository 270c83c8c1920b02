// The ParamHandle of a fuse group in the flat store: views of its bucket, and the state of its gradient in this step.
// Thread-safety: see ParamHandle.
#ifndef SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_
#define SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_

#include <string>

#include "engine/nn/param_handle.h"

namespace slipway::engine::parallel {

class FlatParam;

// Told when the last registered use of a parameter has ended.
class GradListener {
 public:
  virtual ~GradListener() = default;
  virtual void UsesEnded(const FlatParam& param) = 0;
};

class FlatParam final : public nn::ParamHandle {
 public:
  // main_grad is undefined for a frozen parameter. `listener` may be null.
  FlatParam(std::string name, int bucket, at::Tensor weight, at::Tensor main_grad, GradListener* listener);

  const std::string& name() const override { return name_; }
  bool requires_grad() const override { return main_grad_.defined(); }
  at::Tensor Acquire() override { return weight_; }
  void Release() override {}
  void RegisterUse() override { ++pending_uses_; }
  nn::GradTarget BeginGrad() override;
  void EndGrad() override;

  int bucket() const { return bucket_; }
  // A new step: the gradient is stale and no use is open.
  void BeginStep();
  // No more gradients in this step: zero if there was none. Another BeginGrad is an error.
  void Seal();
  // The store is gone.
  void Detach() { listener_ = nullptr; }

 private:
  std::string name_;
  int bucket_;
  at::Tensor weight_;
  at::Tensor main_grad_;
  GradListener* listener_;
  int pending_uses_ = 0;
  bool stale_ = true;
  bool sealed_ = false;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_
