// What a job will do and cost, worked out before it takes a GPU: printed by `slipway jobs plan` and `slipway jobs
// submit --dry-run`. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_PLAN_H_
#define SLIPWAY_ENGINE_SPEC_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/model_estimate.h"
#include "engine/arch/traffic_estimate.h"
#include "engine/topology/mesh.h"
#include "engine/topology/pipeline_partition.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

struct PlanOptions {
  int gpus_per_node = 8;  // ranks fill nodes in order
};

// The groups of one kind: a partition of the ranks, but for the embedding's, which hold the first and last stages.
struct PlannedGroups {
  topology::GroupKind kind = topology::GroupKind::kTp;
  int64_t count = 0;
  int size = 0;
  int nodes = 1;                           // the most that one group spans
  std::vector<std::vector<int>> examples;  // the first ones, kMaxPlanExamples at most
};

struct Plan {
  topology::MeshSizes mesh;
  int edp = 1;
  std::string order;
  int64_t world_size = 0;
  int gpus_per_node = 1;
  int64_t nodes = 1;
  std::vector<topology::Coordinates> ranks;  // by rank; at most kMaxPlanRanks of them
  std::vector<PlannedGroups> groups;         // of more than one rank
  topology::PipelinePartition partition;
  int64_t micro_batches_per_step = 0;  // of one data-parallel rank
  int64_t tokens_per_step = 0;         // upper bound: full sequences
  int64_t tokens_of_rank = 0;          // of a micro-batch of full sequences, on one rank
  int64_t tokens_between_blocks = 0;   // of these, what the rank has of the residual stream
  std::string cp_comm_type;            // empty without context parallelism
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t parameters = 0;
  double flops_per_step = 0;
  // Idle over useful time of a pipeline rank: (PP − 1) / (V · M), and of the schedule with the stages' own lengths and
  // messages that take time (kPlanFlopsPerSecond and the two bandwidths).
  double ideal_bubble = 0;
  double simulated_bubble = 0;
  std::vector<arch::MemoryEstimate> memory_by_stage;  // by pipeline rank, without allocator slack
  arch::MemoryEstimate memory;                        // of the one that needs most
  std::vector<arch::Traffic> traffic;
  int64_t checkpoint_bytes = 0;        // of one checkpoint
  int64_t checkpoints_kept_bytes = 0;  // of those kept, and the one being written
};
inline constexpr int64_t kMaxPlanRanks = 16;
inline constexpr size_t kMaxPlanExamples = 3;
// What the simulation assumes of the machine: a GPU's speed in matrix products, bytes a second to a GPU of the same
// node and of another one.
inline constexpr double kPlanFlopsPerSecond = 400e12;
inline constexpr double kPlanNodeBandwidth = 400e9;
inline constexpr double kPlanNetworkBandwidth = 50e9;

// InvalidArgument when the model does not divide over the layout. REQUIRES: a resolved spec without faults.
absl::StatusOr<Plan> MakePlan(const v1::TrainingSpec& resolved, const arch::ModelArch& model,
                              const PlanOptions& options = {});

// What the estimates of engine/arch must know of a spec. Errors as MakePlan.
absl::StatusOr<arch::MemoryOptions> MemoryOptionsOf(const v1::TrainingSpec& resolved, const arch::ModelArch& model);

// Aligned lines for a terminal: a summary.
std::string PlanText(const Plan& plan);
// All of it for programs, in bytes and FLOP.
nlohmann::ordered_json PlanJson(const Plan& plan);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_PLAN_H_
