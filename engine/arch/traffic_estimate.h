// What the ranks of a layout send each other in one training step: operations and bytes by kind of collective and
// group, for the plan that a person reads before a job takes GPUs. Upper bounds from shapes alone (full sequences),
// without the sums of a few numbers that every step has. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_ARCH_TRAFFIC_ESTIMATE_H_
#define SLIPWAY_ENGINE_ARCH_TRAFFIC_ESTIMATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/model_estimate.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::arch {

// One kind of collective over one kind of group. Counts are those of the rank that sends most.
struct Traffic {
  std::string operation;  // "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"
  topology::GroupKind group = topology::GroupKind::kTp;
  std::string what;        // "activations", "gradients", "weights", "keys and values", …
  int group_size = 1;
  int64_t operations = 0;  // in a step
  double bytes = 0;        // that the rank sends in a step, by rings: 2 (n - 1) / n of what is summed, (n - 1) / n of what
                           // is gathered or scattered
  double node_bytes = 0;   // of the bytes of all ranks on one node, those that leave it: the busiest node
};

struct TrafficOptions {
  int gpus_per_node = 8;              // ranks fill nodes in order
  std::string context_comm = "p2p";  // parallelism.cp_comm_type
};

// Everything above zero. Errors as EstimateMemory.
absl::StatusOr<std::vector<Traffic>> EstimateTraffic(const ModelArch& arch, const MemoryOptions& memory,
                                                     const topology::Mesh& mesh, const TrafficOptions& options);

// Of the messages that each rank of a group sends to its neighbour in the group's ring (without `ring`: the last one
// sends none), how many leave the node that sends most of them so. Ranks fill nodes in order.
int NeighboursOnOtherNodes(const std::vector<std::vector<int>>& groups, int gpus_per_node, bool ring);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_TRAFFIC_ESTIMATE_H_
