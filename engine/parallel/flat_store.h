// This rank's parameters, main gradients, master weights and optimizer state, in flat buckets.
//
// A bucket holds whole pieces of the model, trained or frozen ones, each group aligned to arch::kGroupAlignment
// elements, those with weight decay first, the bucket padded so that it cuts evenly over its gradient group (dp × cp,
// and edp for the experts, which have buckets of their own); see engine/arch/bucket_plan.h. Rank r of that group owns
// slice r of every bucket of what is sharded; the optimizer runs over whole slices and needs no per-tensor case.
//
// Buffers per bucket of N elements, S = N / ranks where FlatStoreOptions::sharding cuts them, else N:
//   compute weights      bf16 or fp32; cut by optim_grads_params, and then gathered for use, two buckets at a time
//   main gradients       fp32; cut by optim_grads, and then written through two staging buckets at most
//   master weights       fp32; fp32 compute: this rank's part of the compute weights itself; cut by optim
//   exp_avg, exp_avg_sq  fp32; cut by optim
// A frozen bucket has compute weights alone; with `weights_only` every bucket is frozen. On one rank nothing is cut.
// Padding elements are zero for ever: their gradients are never written.
// Thread-safety: the training thread (see ParamHandle for the autograd thread).
#ifndef SLIPWAY_ENGINE_PARALLEL_FLAT_STORE_H_
#define SLIPWAY_ENGINE_PARALLEL_FLAT_STORE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/arch/bucket_plan.h"
#include "engine/arch/param_spec.h"
#include "engine/arch/sharding.h"
#include "engine/comm/parallel_groups.h"
#include "engine/nn/param_handle.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::parallel {

struct FlatStoreOptions {
  at::ScalarType compute_dtype = at::kFloat;  // kFloat or kBFloat16
  at::Device device = at::kCPU;
  arch::Sharding sharding = arch::Sharding::kOptim;  // over dp_cp
  int64_t bucket_elements = 40'000'000;              // a bucket closes when it reaches this
  int64_t make_vocab_size_divisible_by = 128;
  bool sequence_parallel = false;    // norms see only their rank's tokens
  bool weights_only = false;         // nothing is trained: no gradients, master weights or moments
  bool overlap_grad_reduce = true;   // reduce a bucket while the backward goes on
  bool overlap_param_gather = true;  // gather a bucket while the forward goes on
  bool grad_reduce_in_fp32 = true;   // false: bf16 between ranks
};

// A box of the global tensor: start and extent per dimension.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> extent;
};

// A logical tensor's share of this rank: rows `box` of the global tensor, lying at [offset, offset + elements) of a
// bucket. Vocabulary padding is not part of it. A tied use (spec->tied_to) is listed only where its target is not on
// this rank: it is another copy of the target's rows.
struct LogicalShare {
  const arch::ParamSpec* spec;
  Box box;
  int bucket;
  int64_t offset;
  int64_t elements;
  bool primary;  // counted in norms and written to checkpoints: false for replicas on other TP ranks and tied copies
};

// The part of a LogicalShare that this rank's optimizer slice holds: elements [begin, end) of the box in row-major
// order, at [offset, offset + end − begin) of the slice buffers.
struct OwnedRange {
  const LogicalShare* share;
  int64_t begin;
  int64_t end;
  int64_t offset;
};

struct Bucket {
  at::Tensor weights;       // compute dtype [N], [S] where parameters are sharded
  at::Tensor main_grads;    // fp32 [N], [S] where gradients are sharded
  at::Tensor master;        // fp32 [S]
  at::Tensor exp_avg;       // fp32 [S]
  at::Tensor exp_avg_sq;    // fp32 [S]
  int64_t shard_begin = 0;  // what this rank's optimizer holds: [shard_begin, shard_begin + shard_elements)
  int64_t shard_elements = 0;
  int64_t decay_elements = 0;  // of that: the first have weight decay
  bool trainable = true;
  double sign_update_rate = 0;  // above 0: fp32, and not the optimizer's (ParamSpec)
  int group_rank = 0;           // of this rank in the gradient group
  // What this rank counts in a sum over all ranks of the job, so that everything is counted once: ranges of the slices,
  // inside what rank `rank of the gradient group` would own also where nothing is sharded. They may include alignment
  // gaps, whose elements are zero: counted_gaps says how many.
  std::vector<arch::ElementRange> counted;
  int64_t counted_gaps = 0;

  at::Tensor grad_slice() const { return SliceOf(main_grads); }
  at::Tensor weight_slice() const { return SliceOf(weights); }
  // Where weights are loaded to: what PublishWeights starts from, and the weights themselves where nothing is trained.
  at::Tensor loaded_slice() const { return master.defined() ? master : weight_slice(); }

 private:
  at::Tensor SliceOf(const at::Tensor& flat) const {
    return flat.numel() == shard_elements ? flat : flat.narrow(0, shard_begin, shard_elements);
  }
};

// Bytes that a store holds.
struct StoreBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;      // master weights and moments; fp32 compute weights are their own masters
  int64_t peak_gathered = 0;  // the most that gathered weights have taken beside these
  int64_t peak_staging = 0;   // the most that staging buffers of gradients have taken beside these

  friend bool operator==(const StoreBytes&, const StoreBytes&) = default;
};

class FlatStore {
 public:
  // `table` is the whole model's; the store keeps what `pieces` and the TP coordinate give this rank. Weights are zero
  // until initialised or loaded. InvalidArgument as PlanBuckets.
  static absl::StatusOr<std::unique_ptr<FlatStore>> Create(std::vector<arch::ParamSpec> table,
                                                           const std::vector<arch::Piece>& pieces,
                                                           const topology::Mesh& mesh, int rank,
                                                           const comm::ParallelGroups& groups,
                                                           const FlatStoreOptions& options);
  virtual ~FlatStore() = default;

  // The handle of a fuse group; null when this rank has none of that name. A tied use on the same rank has its
  // target's. Handles may outlive the store, but no gradient may be given then.
  virtual nn::ParamPtr Handle(const std::string& fuse_group) = 0;
  virtual const std::vector<LogicalShare>& shares() const = 0;
  virtual std::vector<OwnedRange> owned_ranges() const = 0;
  // Waits until gathers under way are done, so that all weights are what they will be.
  virtual std::vector<Bucket>& buckets() = 0;
  virtual const FlatStoreOptions& options() const = 0;
  virtual StoreBytes Bytes() const = 0;

  // Draws initial weights on the host by (seed, name, global index): the same on every layout.
  virtual void InitializeWeights(uint64_t seed) = 0;
  // A step: gradients count as stale. BeginLastBackward comes before the last backward of these pieces and lets their
  // buckets be reduced as they become ready. After FinishGradients every grad_slice() is the sum over dp_cp (edp), over
  // TP where the table says so, and over tied copies; a group without any gradient counts as zero.
  virtual void BeginStep() = 0;
  virtual void BeginLastBackward(const std::vector<arch::Piece>& pieces) = 0;
  virtual void FinishGradients() = 0;
  // After master weights were set: master slices → compute weights, gathered over dp_cp.
  virtual void PublishWeights() = 0;
  // After an optimizer that rounds into the weight slices itself: gathers them over dp_cp, or lets go of what was
  // gathered. With overlap_param_gather it returns at once and a bucket's first use waits for its gather.
  virtual void GatherWeights() = 0;
  // Compute weights → master slices (after a load of weights alone).
  virtual void AdoptWeights() = 0;
  // Over the compute weights; the same on replicas whose weights are the same bits, however they are sharded, and never
  // 0. All ranks of the gradient groups call it alike. Waits for the device.
  virtual uint64_t WeightsChecksum() = 0;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_FLAT_STORE_H_
