// Where a step's gradients are written, and how they become sums over the bucket's gradient group. Two ways:
//
//   resident   whole fp32 buckets for all of a step. In the last micro-batch a bucket whose gradients are complete is
//              reduced while the backward goes on: buckets in the order of their numbers, whatever the order in which
//              they become ready, so that all ranks issue the same operations in the same order.
//   staged     (ZeRO-2) this rank's fp32 slices alone. A backward writes a bucket into a staging buffer; when it goes
//              on to the next bucket, the staging buffer is reduce-scattered and added to the slice. Two staging
//              buffers exist at most: the one that is written and the one under way. Every rank of the group must run
//              the same backwards in the same order, as all that share a schedule do.
//
// With `reduce_in_fp32` off, what travels is bf16 (half the bytes; each rank's sum is rounded before it is added up).
// Accumulation over micro-batches is fp32 in any case.
// Thread-safety: the training thread (see nn::ParamHandle for the autograd thread). Errors: CommError; c10::Error for a
// backward that comes too late or that was not registered.
#ifndef SLIPWAY_ENGINE_PARALLEL_GRADIENT_BUFFERS_H_
#define SLIPWAY_ENGINE_PARALLEL_GRADIENT_BUFFERS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/arch/bucket_plan.h"
#include "engine/comm/communicator.h"
#include "engine/nn/param_handle.h"

namespace slipway::engine::parallel {

struct Bucket;

class GradientBuffers {
 public:
  struct Options {
    bool sharded = false;  // a rank needs its own slice of the sums alone
    bool overlap = true;
    bool reduce_in_fp32 = true;
  };

  virtual ~GradientBuffers() = default;

  virtual void BeginStep() = 0;
  // The backward that comes is the step's last one of these groups: when their open uses have ended, their gradients
  // are complete.
  virtual void BeginLastBackward(const std::vector<int>& groups) = 0;
  virtual void RegisterUse(int group) = 0;
  virtual nn::GradTarget BeginGrad(int group) = 0;
  virtual void EndGrad(int group) = 0;
  // Bucket::grad_slice() holds the sums; a group without any gradient counts as zero.
  virtual void Finish() = 0;
  // The most that buffers have taken at one time beside Bucket::main_grads.
  virtual int64_t peak_staging_bytes() const = 0;
};

// Whether no bucket has another rank that holds the same.
inline bool IsAlone(const std::vector<comm::CommPtr>& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const comm::CommPtr& group) { return group->size() == 1; });
}

// Plan and buckets outlive the result. groups: by bucket, its gradient group.
std::unique_ptr<GradientBuffers> MakeResidentGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets,
                                                       std::vector<comm::CommPtr> groups,
                                                       const GradientBuffers::Options& options);
std::unique_ptr<GradientBuffers> MakeStagedGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets,
                                                     std::vector<comm::CommPtr> groups,
                                                     const GradientBuffers::Options& options);

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_GRADIENT_BUFFERS_H_
