// What each node should run, derived from the state alone. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_CORE_DESIRED_H_
#define SLIPWAY_SERVER_CORE_DESIRED_H_

#include <string>

#include "server/core/state.h"
#include "slipway/v1/agent_service.pb.h"

namespace slipway::server::core {

// Complete: what is not in it must not run. Empty for an unknown node.
v1::DesiredState DesiredFor(const ClusterState& state, const std::string& node_id);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_DESIRED_H_
