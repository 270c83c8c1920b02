// A job as its owner sees it: why it waits is worked out when it is asked for. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_CORE_DESCRIBE_H_
#define SLIPWAY_SERVER_CORE_DESCRIBE_H_

#include <string>

#include "server/core/state.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/node.pb.h"

namespace slipway::server::core {

struct Waiting {
  std::string reason;   // "WaitingForSlots"
  std::string message;  // "waiting for 2 cpu slots: 0 of 2 free, held by job-… (2)"
};
// REQUIRES: the job is in state.waiting.
Waiting WhyWaiting(const ClusterState& state, const JobEntry& entry, const Now& now);

// With `with_history` attempts and checkpoints too.
v1::Job Describe(const ClusterState& state, const JobEntry& entry, const Now& now, bool with_history);

// Its slots name who holds them.
v1::Node DescribeNode(const ClusterState& state, const NodeEntry& entry);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_DESCRIBE_H_
