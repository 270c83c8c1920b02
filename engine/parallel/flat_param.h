// The ParamHandle of a fuse group in the flat store. It knows its name and its number; where its weight and its
// gradient are at the moment is the store's business. Thread-safety: see ParamHandle.
#ifndef SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_
#define SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_

#include <string>

#include "engine/nn/param_handle.h"

namespace slipway::engine::parallel {

// What a handle asks of its store; groups by their number in the plan.
class ParamHost {
 public:
  virtual ~ParamHost() = default;
  virtual at::Tensor AcquireWeight(int group) = 0;
  virtual void ReleaseWeight(int group) = 0;
  virtual void RegisterUse(int group) = 0;
  virtual nn::GradTarget BeginGrad(int group) = 0;
  virtual void EndGrad(int group) = 0;
};

class FlatParam final : public nn::ParamHandle {
 public:
  FlatParam(std::string name, int group, bool requires_grad, ParamHost* host)
      : name_(std::move(name)), group_(group), requires_grad_(requires_grad), host_(host) {}

  const std::string& name() const override { return name_; }
  bool requires_grad() const override { return requires_grad_; }
  at::Tensor Acquire() override { return Host().AcquireWeight(group_); }
  void Release() override {
    if (host_ != nullptr) host_->ReleaseWeight(group_);
  }
  void RegisterUse() override { Host().RegisterUse(group_); }
  nn::GradTarget BeginGrad() override { return Host().BeginGrad(group_); }
  void EndGrad() override { Host().EndGrad(group_); }

  // The store is gone: all but Release throw from now on.
  void Detach() { host_ = nullptr; }

 private:
  ParamHost& Host() const;

  std::string name_;
  int group_;
  bool requires_grad_;
  ParamHost* host_;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_FLAT_PARAM_H_
