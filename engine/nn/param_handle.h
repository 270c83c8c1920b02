// How an operation reaches its parameter. Operations save the handle in their autograd node, never the weight, so that
//  - gradients go straight into the fp32 main gradient, with no tensor of their own in between,
//  - sharded weights can be freed after each use and gathered again (ZeRO-3),
//  - converted copies (fp8) can be cached.
//
// A handle stands for one *fuse group*: q|k|v, gate|up, or a single tensor. Its weight is this rank's share of the
// group, the members' local rows one after another.
//
// Forward: Acquire() → use → Release(). In grad mode, RegisterUse() once for each use that will have a backward.
// Backward, once per registered use: GradTarget g = BeginGrad(); write (or, with g.accumulate, add) the fp32 gradient
// into g.main_grad; EndGrad(). When every registered use of the micro-batch that the store was told is the last one has
// ended, the store is free to reduce the gradient. Thread-safety: the rank's training thread, and the autograd thread
// of its device while that runs a backward for it.
#ifndef SLIPWAY_ENGINE_NN_PARAM_HANDLE_H_
#define SLIPWAY_ENGINE_NN_PARAM_HANDLE_H_

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <string>

namespace slipway::engine::nn {

struct GradTarget {
  at::Tensor main_grad;  // fp32, the local shape of the group, a view of the flat gradient buffer
  bool accumulate;       // false: its content is stale, overwrite it (the first use in a step)
};

class ParamHandle : public torch::CustomClassHolder {
 public:
  virtual const std::string& name() const = 0;  // of the fuse group
  virtual bool requires_grad() const = 0;       // false: frozen; BeginGrad is not called

  // The compute weight (bf16 or fp32), local shape [rows, columns] or [n]. Not differentiable by torch.
  virtual at::Tensor Acquire() = 0;
  virtual void Release() = 0;

  virtual void RegisterUse() = 0;
  virtual GradTarget BeginGrad() = 0;
  virtual void EndGrad() = 0;
};
using ParamPtr = c10::intrusive_ptr<ParamHandle>;

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_PARAM_HANDLE_H_
