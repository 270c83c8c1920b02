// What a job will do and cost, worked out before it takes a GPU: printed by `slipway jobs submit --dry-run`.
// Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_PLAN_H_
#define SLIPWAY_ENGINE_SPEC_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/model_estimate.h"
#include "engine/topology/mesh.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

struct Plan {
  topology::MeshSizes mesh;
  int64_t world_size = 0;
  std::vector<topology::Coordinates> ranks;  // by rank; at most kMaxPlanRanks of them
  std::string layers_by_stage;               // "[8, 8, 7, 7]"
  int64_t micro_batches_per_step = 0;        // of one data-parallel rank
  int64_t tokens_per_step = 0;               // upper bound: full sequences
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t parameters = 0;
  double flops_per_step = 0;
  arch::MemoryEstimate memory;         // of the rank that needs most, without allocator slack
  int64_t checkpoint_bytes = 0;        // of one checkpoint
  int64_t checkpoints_kept_bytes = 0;  // of those kept, and the one being written
};
inline constexpr int64_t kMaxPlanRanks = 64;

// InvalidArgument when the model does not divide over the layout. REQUIRES: a resolved spec without faults.
absl::StatusOr<Plan> MakePlan(const v1::TrainingSpec& resolved, const arch::ModelArch& model);

// Aligned lines for a terminal.
std::string PlanText(const Plan& plan);
// The same for programs, in bytes and FLOP.
nlohmann::ordered_json PlanJson(const Plan& plan);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_PLAN_H_
