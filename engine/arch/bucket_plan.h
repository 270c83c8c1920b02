// Where every parameter of a rank lies in its flat buckets, as pure arithmetic (no tensor is made here).
//
// Buckets follow the pieces of the model, in the reverse of the table's order, which is the order in which a backward
// pass finishes them: a bucket takes whole pieces until it has reached the size limit, and a piece that reaches it
// alone has a bucket of its own. So a layer's parameters are gathered, and its gradients reduced, by one operation.
// Frozen groups, experts and what has a sign update have buckets of their own, as has a tensor with tied copies on
// several stages, so that the copies' slices line up. Buckets are numbered by the last group that they hold: number 0
// is ready first. Every rank of a bucket's gradient group (and of a TP group) has the same plan but for what is
// primary. Thread-safe: pure functions and immutable data.
#ifndef SLIPWAY_ENGINE_ARCH_BUCKET_PLAN_H_
#define SLIPWAY_ENGINE_ARCH_BUCKET_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/param_spec.h"

namespace slipway::engine::arch {

inline constexpr int64_t kGroupAlignment = 64;

// [begin, end) in elements.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// A logical tensor's share of this rank.
struct PlannedShare {
  int spec = 0;                // index in the table
  std::vector<int64_t> start;  // the box of the global tensor
  std::vector<int64_t> extent;
  int64_t offset = 0;    // in the bucket
  int64_t elements = 0;  // of the box: padding of the vocabulary follows it
  bool primary = true;   // no other rank of the model (tp × pp) counts or stores the same elements
  int tp_grad_sum = 1;   // neighbouring TP ranks over which the gradient is summed
};

struct PlannedGroup {
  std::string name;
  int bucket = 0;
  int64_t offset = 0;
  std::vector<int64_t> shape;  // local, padding of the vocabulary included
  std::vector<PlannedShare> shares;

  int64_t Elements() const;
};

struct PlannedBucket {
  int64_t elements = 0;        // a multiple of kGroupAlignment × shards
  int64_t decay_elements = 0;  // [0, decay_elements) have weight decay, the rest have none
  int shards = 1;              // ranks of the gradient group
  bool trainable = true;
  bool expert = false;              // the gradient group is edp, not dp_cp
  double sign_update_rate = 0;      // see ParamSpec
  bool tied_across_stages = false;  // the gradient is summed over the embedding group
};

struct BucketPlan {
  std::vector<PlannedBucket> buckets;
  std::vector<PlannedGroup> groups;          // in the table's order
  std::map<std::string, int> group_of_name;  // also the names of tied uses; index in groups

  int64_t ShardElements(int bucket) const { return buckets[bucket].elements / buckets[bucket].shards; }
};

struct BucketPlanOptions {
  TpPlacement tp;
  int shards = 1;         // ranks of the gradient group dp_cp
  int expert_shards = 1;  // of edp
  int64_t bucket_elements = 40'000'000;
  bool sequence_parallel = false;
};

// What a rank with these pieces needs of the table. A tied use shares the storage of its target where the rank has
// both, and has a storage of its own (not primary) where it has not. InvalidArgument naming the parameter: a dimension
// that does not divide, members of a fuse group that do not fit together, a tied_to that is not in the table or has
// another shape, a missing or repeated member.
absl::StatusOr<BucketPlan> PlanBuckets(const std::vector<ParamSpec>& table, const std::vector<Piece>& pieces,
                                       const BucketPlanOptions& options);

// What slice `shard` of a bucket counts in global sums over the model's ranks: all of it, nothing, or what is primary;
// alignment gaps may be included (they are zero). Parameters with a sign update are not counted. In bucket coordinates,
// ascending.
std::vector<ElementRange> CountedRanges(const BucketPlan& plan, int bucket, int shard);

// How many elements of CountedRanges are parameters; the others are alignment.
int64_t CountedElements(const BucketPlan& plan, int bucket, int shard);

// Where gradients must be summed over `ranks` neighbouring TP ranks, clipped to `window` of the bucket; neighbours
// merged.
struct TpSumRange {
  int bucket = 0;
  ElementRange range;
  int ranks = 1;

  friend bool operator==(const TpSumRange&, const TpSumRange&) = default;
};
std::vector<TpSumRange> TpSumRanges(const BucketPlan& plan, int bucket, const ElementRange& window);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_BUCKET_PLAN_H_
