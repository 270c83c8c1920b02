// What data parallelism costs a rank, worked out without running anything: the bytes that it holds and the collective
// operations that it issues for parameters and gradients. It walks the same bucket plan, with the same GatherWindow, as
// the store that trains, so that a test can ask for equality.
//
//   DataParallelTraffic traffic(table, plan, {.sharding = Sharding::kOptimGradsParams, .tp = 2});
//   for (each pass of the rank's schedule) pass.backward ? traffic.Backward(pieces) : traffic.Forward(pieces);
//   traffic.EndStep();
//   traffic.TakeVolumes();  // {{"dp-cp", "all_gather"}: 12 operations, 3.2 MB}, …
//
// REQUIRES: every parameter is trained (a backward skips what it needs no gradient through). Thread-safety: one thread.
#ifndef SLIPWAY_ENGINE_ARCH_DATA_PARALLEL_TRAFFIC_H_
#define SLIPWAY_ENGINE_ARCH_DATA_PARALLEL_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/arch/bucket_plan.h"
#include "engine/arch/gather_window.h"
#include "engine/arch/param_spec.h"
#include "engine/arch/sharding.h"

namespace slipway::engine::arch {

struct DataParallelOptions {
  Sharding sharding = Sharding::kOptim;
  int shard = 0;  // this rank's place in dp_cp
  int tp = 1;
  int pp = 1;
  int64_t world = 1;
  int64_t compute_bytes = 4;  // of a compute weight; 4: they are their own masters
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool grad_reduce_in_fp32 = true;
  bool params_norm = false;  // is measured too
};

// Bytes of one rank.
struct ResidentBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;      // master weights where they are of their own, and moments
  int64_t peak_gathered = 0;  // whole buckets of sharded weights; so far
  int64_t peak_staging = 0;   // buffers of gradients on their way; so far

  friend bool operator==(const ResidentBytes&, const ResidentBytes&) = default;
};

struct Volume {
  int64_t operations = 0;
  int64_t bytes = 0;  // of what the rank gives: a slice to a gather, a bucket to a reduction

  friend bool operator==(const Volume&, const Volume&) = default;
};
// By group ("dp-cp", "edp", "tp", "embedding", "world") and operation ("all_gather", "reduce_scatter", "all_reduce").
using Volumes = std::map<std::pair<std::string, std::string>, Volume>;

class DataParallelTraffic {
 public:
  // Table and plan outlive it. The plan's shards are the ranks of the gradient groups; on one nothing is sharded.
  DataParallelTraffic(const std::vector<ParamSpec>& table, const BucketPlan& plan, const DataParallelOptions& options);

  // A pass through these pieces, given in the order of a forward.
  void Forward(const std::vector<Piece>& pieces);
  void Backward(const std::vector<Piece>& pieces);
  // Gradients are finished, the optimizer has stepped, weights are published.
  void EndStep();

  // Since the last call.
  Volumes TakeVolumes() { return std::exchange(volumes_, {}); }
  const ResidentBytes& resident() const { return resident_; }

 private:
  std::vector<const ParamSpec*> ParametersOf(const Piece& piece) const;
  int BucketOf(const ParamSpec& spec) const;
  void UseWeight(int bucket);
  void WriteGradient(int bucket);
  void Flush();
  void ReduceResident();
  void SumReplicas();
  void Count(const std::string& group, const std::string& operation, int64_t bytes);
  int64_t Elements(int bucket) const { return plan_.buckets[bucket].elements; }
  int Shards(int bucket) const { return plan_.buckets[bucket].shards; }
  const char* GroupOf(int bucket) const { return plan_.buckets[bucket].expert ? "edp" : "dp-cp"; }
  bool HasSignUpdate(int bucket) const { return plan_.buckets[bucket].sign_update_rate > 0; }
  int64_t ComputeBytes(int bucket) const { return HasSignUpdate(bucket) ? 4 : options_.compute_bytes; }
  bool ReducesInFp32(int bucket) const { return options_.grad_reduce_in_fp32 || HasSignUpdate(bucket); }
  int64_t WireBytes(int bucket) const { return Elements(bucket) * (ReducesInFp32(bucket) ? 4 : 2); }

  const std::vector<ParamSpec>& table_;
  const BucketPlan& plan_;
  DataParallelOptions options_;
  GatherWindow window_;
  int64_t gathered_ = 0;
  int filling_ = -1;       // the bucket in the staging buffer
  int64_t under_way_ = 0;  // bytes of the staging buffer that is being reduced
  ResidentBytes resident_;
  Volumes volumes_;
};

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_DATA_PARALLEL_TRAFFIC_H_
