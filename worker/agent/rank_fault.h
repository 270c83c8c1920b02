// Why a rank ended, from everything that it left: exit record, its own last word, its last collective, and whether we
// killed it. Pure.
#ifndef SLIPWAY_WORKER_AGENT_RANK_FAULT_H_
#define SLIPWAY_WORKER_AGENT_RANK_FAULT_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/job.pb.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/agent/reconciler.h"
#include "worker/link/collective_board.h"

namespace slipway::worker::agent {

struct RankEnd {
  // What the shim wrote; none when the shim itself died.
  std::optional<slipway::worker::v1::ExitRecord> record;
  std::string shim_error;  // why there is no record, when more is known than that the shim died
  bool machine_restarted = false;
  slipway::worker::v1::WorkerReport report;  // the last
  std::optional<link::CollectiveRecord> collective;
  KillReason killed = KillReason::kNone;  // by this agent, while it was still alive
  bool out_of_memory = false;             // the kernel has killed a process for memory since the rank was last seen
  absl::Time ended;
  absl::Duration ended_monotonic;  // CLOCK_MONOTONIC
};

struct RankVerdict {
  slipway::v1::RankOutcome outcome = slipway::v1::RANK_OUTCOME_UNSPECIFIED;
  slipway::v1::Cause cause;  // with RANK_OUTCOME_FAULT
};

RankVerdict Judge(const RankEnd& end);

// "Connection reset by peer" and its sisters: another rank went first.
bool IsPeerLoss(std::string_view message);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_RANK_FAULT_H_
