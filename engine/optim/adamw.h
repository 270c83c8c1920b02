// AdamW over the flat store's bucket slices, with the global gradient norm, clipping and the agreement of all ranks to
// skip a step whose gradient or loss is not finite. A step never waits for the device: what it found out comes back as
// device tensors, to be read a step later.
//
//   AdamW optimizer(store, groups, {...});
//   store.FinishGradients();
//   StepOutcome outcome = optimizer.Step(LearningRate(schedule, step - 1), loss_sum);
//
// The norm counts every gradient element of the model once, however it is laid out, as do the number of gradient
// elements that are zero and the norm of the parameters; it is the norm before clipping. The coefficient is min(1,
// max_norm / (norm + 1e-6)), as Megatron-LM's and torch's clip_grad_norm_. Decay is decoupled and falls on parameters
// with weight decay alone. Buckets with a sign update (the experts' bias) are moved by their rate against the sign of
// their gradient and counted nowhere. A skipped step leaves weights, moments and the update count as they were, bit for
// bit. Thread-safety: the training thread. Errors: CommError and c10::Error pass through.
#ifndef SLIPWAY_ENGINE_OPTIM_ADAMW_H_
#define SLIPWAY_ENGINE_OPTIM_ADAMW_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/comm/parallel_groups.h"
#include "engine/parallel/flat_store.h"

namespace slipway::engine::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;  // 0: no clipping
  bool count_zeros = false;    // StepOutcome::num_zeros
  bool params_norm = false;    // StepOutcome::params_norm
};

// Scalars on the device, the same on all ranks.
struct StepOutcome {
  at::Tensor grad_norm;    // fp32, before clipping; not finite when the step was skipped for it
  at::Tensor skipped;      // fp32; 1: nothing was changed
  at::Tensor num_zeros;    // fp64: gradient elements that are zero; undefined when it was not asked for
  at::Tensor params_norm;  // fp64, of the weights after the step, frozen ones included; likewise
};

// Told before the optimizer overwrites a bucket's master weights and moments; may block.
class UpdateListener {
 public:
  virtual ~UpdateListener() = default;
  virtual void BeforeUpdate(int bucket) = 0;
};

class AdamW {
 public:
  // The store and the groups outlive the optimizer.
  AdamW(parallel::FlatStore& store, const comm::ParallelGroups& groups, const AdamWOptions& options);

  // The gradients are finished. loss_sum: this rank's loss, looked at only for being finite; may be undefined. All
  // ranks of the job call it with the same rate; afterwards the compute weights are published.
  StepOutcome Step(double learning_rate, const at::Tensor& loss_sum = {});

  // The number of updates made so far (skipped steps are none): fp32 scalar on the device, part of the state of a run.
  const at::Tensor& updates() const { return updates_; }
  void SetUpdates(int64_t updates);
  // May be null; is told in every step, also where the step is skipped, and outlives the last one.
  void SetListener(UpdateListener* listener) { listener_ = listener; }

 private:
  at::Tensor SumOverRanks(const at::Tensor& loss_sum) const;
  at::Tensor ParamsNorm() const;

  parallel::FlatStore& store_;
  const comm::ParallelGroups& groups_;
  AdamWOptions options_;
  UpdateListener* listener_ = nullptr;
  at::Tensor updates_;
};

}  // namespace slipway::engine::optim

#endif  // SLIPWAY_ENGINE_OPTIM_ADAMW_H_
