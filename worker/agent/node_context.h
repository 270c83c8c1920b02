// What all attempts of a node share. Made once at the start; read-only afterwards, except for the leases, which the
// coordinator tells.
#ifndef SLIPWAY_WORKER_AGENT_NODE_CONTEXT_H_
#define SLIPWAY_WORKER_AGENT_NODE_CONTEXT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/node.pb.h"
#include "slipway/worker/v1/worker.pb.h"

namespace slipway::worker::agent {

struct NodeContext {
  std::string node_id;
  std::string state_dir;
  std::string socket_path;  // the worker hub's
  std::string shim_binary;
  std::string worker_binary;
  std::string rendezvous_ip;
  std::vector<slipway::v1::Slot> slots;
  std::vector<std::string> allowed_roots;  // empty: no limit
  absl::Duration worker_lease = absl::Minutes(2);
  absl::Duration preflight_timeout = absl::Minutes(10);
  const Clock* clock = nullptr;
  FileSystem* files = nullptr;
};

// PermissionDenied, naming path and roots, unless the path is absolute and lies below one of the roots once symbolic
// links are followed.
absl::Status CheckAllowed(const NodeContext& node, const std::string& path);

// What a rank (or, with rank -1, the preflight) is started with. InvalidArgument when its slot is not of this node.
absl::StatusOr<slipway::worker::v1::WorkerLaunch> MakeLaunch(const NodeContext& node,
                                                             const slipway::v1::DesiredAssignment& assignment,
                                                             int rank);

// "NAME=value" entries: this process's environment, the spec's, and what the slot prescribes; later ones win.
std::vector<std::string> MakeEnvironment(const NodeContext& node, const slipway::v1::DesiredAssignment& assignment,
                                         int rank);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_NODE_CONTEXT_H_
