// The compute weights of a rank's buckets, as operations see them: there all the time, or gathered from the ranks'
// slices when they are needed (ZeRO-3).
//
// Resident weights whose slices have changed are gathered in the order of a forward pass; with `overlap` a bucket's
// first use waits for its own gather alone. Sharded weights are gathered by use, as arch::GatherWindow says; with
// `overlap` one bucket ahead. Every rank of the group uses its buckets in the same order, so all gather alike.
// Thread-safety: the training thread (see nn::ParamHandle for the autograd thread). Errors: CommError, c10::Error.
#ifndef SLIPWAY_ENGINE_PARALLEL_WEIGHT_BUFFERS_H_
#define SLIPWAY_ENGINE_PARALLEL_WEIGHT_BUFFERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/arch/bucket_plan.h"
#include "engine/arch/gather_window.h"
#include "engine/comm/communicator.h"

namespace slipway::engine::parallel {

struct Bucket;

class WeightBuffers {
 public:
  struct Options {
    bool sharded = false;  // Bucket::weights is this rank's slice alone
    bool gather = false;   // a change of the slices must be gathered
    bool overlap = true;
  };

  // Plan and buckets outlive it. groups: by bucket, the ranks that hold its slices.
  WeightBuffers(const arch::BucketPlan& plan, const std::vector<Bucket>& buckets, std::vector<comm::CommPtr> groups,
                const Options& options);

  // The weight of a group, of its local shape.
  at::Tensor Acquire(int group);
  void Release(int group);
  // The slices of trained buckets have new weights.
  void SlicesChanged();
  // Waits for what is under way.
  void Settle();
  // The most that gathered buckets have taken at one time beside the slices.
  int64_t peak_gathered_bytes() const { return peak_bytes_; }

 private:
  at::Tensor ViewOf(int group, const at::Tensor& flat) const;
  void Await(int bucket);
  void Gather(int bucket);
  void LetGo(int bucket);
  void Do(const std::vector<arch::GatherWindow::Action>& actions);

  const arch::BucketPlan& plan_;
  const std::vector<Bucket>& buckets_;
  std::vector<comm::CommPtr> groups_;  // by bucket
  Options options_;
  std::vector<at::Tensor> views_;     // by group, where weights are resident
  std::vector<comm::WorkPtr> works_;  // by bucket: its gather under way
  std::vector<at::Tensor> gathered_;  // by bucket, where weights are sharded
  arch::GatherWindow window_;
  int64_t gathered_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_WEIGHT_BUFFERS_H_
