// A parameter that owns its weight and its main gradient: for unit tests, and for models that are only run forward.
// Counts uses, so that a test can assert that each registered use had its backward.
#ifndef SLIPWAY_ENGINE_NN_LOCAL_PARAM_HANDLE_H_
#define SLIPWAY_ENGINE_NN_LOCAL_PARAM_HANDLE_H_

#include <string>

#include "engine/nn/param_handle.h"

namespace slipway::engine::nn {

class LocalParamHandle final : public ParamHandle {
 public:
  // The main gradient is fp32 (fp64 for an fp64 weight, so that gradients can be checked against differences); it is
  // allocated by the first use, and filled with NaN then, so that stale content cannot pass for a gradient.
  LocalParamHandle(std::string name, at::Tensor weight, bool requires_grad);

  const std::string& name() const override { return name_; }
  bool requires_grad() const override { return requires_grad_; }
  at::Tensor Acquire() override;
  void Release() override { --held_; }
  void RegisterUse() override { ++registered_; }
  GradTarget BeginGrad() override;
  void EndGrad() override { ++ended_; }

  // The next gradient overwrites.
  void BeginStep() { stale_ = true; }
  const at::Tensor& main_grad() const { return main_grad_; }
  int registered_uses() const { return registered_; }
  int ended_uses() const { return ended_; }
  int held() const { return held_; }

 private:
  std::string name_;
  at::Tensor weight_;
  bool requires_grad_;
  at::Tensor main_grad_;
  bool stale_ = true;
  int registered_ = 0;
  int ended_ = 0;
  int held_ = 0;
};

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_LOCAL_PARAM_HANDLE_H_
