// This rank's parameters, main gradients, master weights and optimizer state, in flat buckets.
//
// A bucket holds fuse groups of one kind: (weight decay or not, cut over TP or replicated, trainable or frozen), each
// group aligned to kGroupAlignment elements, the bucket padded so that it cuts evenly over the gradient group (dp ×
// cp); see bucket_plan.h. With ZeRO-1, rank r of that group owns slice r of every bucket: its master weights and
// moments exist only there. Because a bucket is of one kind, the optimizer runs over whole slices and needs no
// per-tensor case.
//
// Buffers per bucket of N elements (S = N / shards, or N without sharding):
//   compute weights   bf16 or fp32 [N]
//   main gradients    fp32 [N]
//   master weights    fp32 [S]; fp32 compute: a view of the compute weights
//   exp_avg, exp_avg_sq  fp32 [S]
// A frozen bucket has compute weights alone, whole on each rank; with `weights_only` every bucket is frozen.
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
#include "engine/arch/param_spec.h"
#include "engine/comm/parallel_groups.h"
#include "engine/nn/param_handle.h"
#include "engine/parallel/bucket_plan.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::parallel {

struct FlatStoreOptions {
  at::ScalarType compute_dtype = at::kFloat;  // kFloat or kBFloat16
  at::Device device = at::kCPU;
  bool shard_optimizer = true;           // ZeRO-1 over dp_cp
  int64_t bucket_elements = 40'000'000;  // a bucket closes when it reaches this
  int64_t make_vocab_size_divisible_by = 128;
  bool sequence_parallel = false;  // norms see only their rank's tokens
  bool weights_only = false;       // nothing is trained: no gradients, master weights or moments
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
  at::Tensor weights;       // compute dtype [N]
  at::Tensor main_grads;    // fp32 [N]
  at::Tensor master;        // fp32 [S]
  at::Tensor exp_avg;       // fp32 [S]
  at::Tensor exp_avg_sq;    // fp32 [S]
  int64_t shard_begin = 0;  // the slice of this rank: [shard_begin, shard_begin + shard_elements)
  int64_t shard_elements = 0;
  bool weight_decay = false;
  bool tp_replicated = false;
  bool trainable = true;
  // What this rank counts in a sum over the gradient group and the model group, so that everything is counted once:
  // ranges of main_grads, inside slice `rank of the gradient group` also without sharding.
  std::vector<ElementRange> counted;

  at::Tensor grad_slice() const { return main_grads.narrow(0, shard_begin, shard_elements); }
  at::Tensor weight_slice() const { return weights.narrow(0, shard_begin, shard_elements); }
  // Where weights are loaded to: what PublishWeights starts from, and the weights themselves where nothing is trained.
  at::Tensor loaded_slice() const { return master.defined() ? master : weight_slice(); }
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
  virtual std::vector<Bucket>& buckets() = 0;
  virtual const FlatStoreOptions& options() const = 0;

  // Draws initial weights on the host by (seed, name, global index): the same on every layout.
  virtual void InitializeWeights(uint64_t seed) = 0;
  // A step: gradients count as stale; BeginLastMicroBatch comes before the last backward and lets buckets be reduced as
  // they become ready; after FinishGradients every main gradient (with ZeRO-1: this rank's slice) is the sum over
  // dp_cp, over TP where the table says so, and over tied copies. A group without any gradient counts as zero.
  virtual void BeginStep() = 0;
  virtual void BeginLastMicroBatch() = 0;
  virtual void FinishGradients() = 0;
  // After master weights were set: master slices → compute weights, gathered over dp_cp.
  virtual void PublishWeights() = 0;
  // After an optimizer that rounds into the weight slices itself: gathers them over dp_cp.
  virtual void GatherWeights() = 0;
  // Compute weights → master slices (after a load of weights alone).
  virtual void AdoptWeights() = 0;
  // Over the compute weights; the same on replicas whose weights are the same bits, and never 0. Waits for the device.
  virtual uint64_t WeightsChecksum() = 0;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_FLAT_STORE_H_
