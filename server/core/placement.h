// Which slots a gang gets: all of its ranks or none. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_CORE_PLACEMENT_H_
#define SLIPWAY_SERVER_CORE_PLACEMENT_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/state.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/node.pb.h"

namespace slipway::server::core {

struct SlotHolder {
  std::string job_id;
  int64_t epoch = 0;
  int rank = 0;
};
// (node, slot) → who holds it: the live attempts of active jobs, and nothing else.
std::map<std::pair<std::string, int>, SlotHolder> HeldSlots(const ClusterState& state);

// The kind that a spec's parallelism.device means here: `auto` is CUDA if any node that is not lost has such a slot.
v1::DeviceKind DeviceFor(const ClusterState& state, const v1::TrainingSpec& spec);

struct SlotCount {
  int free = 0;   // on connected nodes
  int total = 0;  // on nodes that are not lost
};
SlotCount CountSlots(const ClusterState& state, v1::DeviceKind kind);

// By rank; nothing when the gang does not fit now. All on one node where that is possible (the one with the least room
// left), else tensor-parallel neighbours together where that is possible. `previous` is taken again when it is free.
std::optional<std::vector<v1::RankPlacement>> Place(const ClusterState& state, const v1::TrainingSpec& spec,
                                                    const v1::Attempt* previous);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_PLACEMENT_H_
