#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text.h"
#include "common/timestamp.h"
#include "server/core/transition.h"

namespace slipway::server::core {

void Transition::On(const Tick&) {
  for (auto& [id, node] : state_.nodes) {
    if (node.node.state() != v1::NODE_STATE_LOST && now_.monotonic >= node.lease_end) LoseNode(node);
  }
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) CheckDeadlines(state_.jobs.at(id));
}

void Transition::LoseNode(NodeEntry& node) {
  node.node.set_state(v1::NODE_STATE_LOST);
  DropPreflightsOn(node.node.id());
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) {
    JobEntry& entry = state_.jobs.at(id);
    v1::Attempt* attempt = LiveAttempt(entry);
    if (attempt == nullptr) continue;
    for (const v1::RankPlacement& placement : attempt->placements()) {
      if (placement.node_id() != node.node.id()) continue;
      v1::Cause cause;
      cause.set_cause_class(v1::CAUSE_CLASS_NODE_LOST);
      cause.set_rank(placement.rank());
      cause.set_node_id(node.node.id());
      cause.set_message(absl::StrCat("no word from the node's agent for ",
                                     FormatDuration(state_.options.agent_lease + state_.options.lease_margin)));
      TakeFault(entry, *attempt, std::move(cause));
      break;
    }
    Evaluate(entry);
  }
}

void Transition::LateExits(JobEntry& entry, v1::Attempt& attempt) {
  const std::string message =
      absl::StrCat("some workers did not leave within ", FormatDuration(state_.options.exit_timeout), " of the first");
  if (entry.ranks[0].observed.state() == v1::RANK_STATE_EXITED) {  // the work is done; what is left of it is ended
    StopNow(entry);
    return Emit(entry, "ExitTimedOut", message);
  }
  v1::Cause cause;
  cause.set_cause_class(v1::CAUSE_CLASS_HANG);
  cause.set_rank(0);
  cause.set_phase("exit");
  cause.set_message(message);
  TakeFault(entry, attempt, std::move(cause));
}

void Transition::CheckDeadlines(JobEntry& entry) {
  if (now_.monotonic >= entry.preflight_deadline) {
    const std::string node = entry.preflight_node;
    DropPreflight(entry);
    if (++entry.preflight_tries >= state_.options.preflight_tries) {
      v1::Cause cause;
      cause.set_cause_class(v1::CAUSE_CLASS_HANG);
      cause.set_node_id(node);
      cause.set_phase("preflight");
      cause.set_message(absl::StrCat("the preflight gave no answer within ",
                                     FormatDuration(state_.options.preflight_timeout), ", ", entry.preflight_tries,
                                     " times"));
      *cause.mutable_time() = ToTimestamp(now_.wall);
      SetCondition(entry, "Preflight", false, "TimedOut", cause.message());
      return Fail(entry, cause, "PreflightTimedOut", cause.message());
    }
    return Emit(entry, "PreflightTimedOut", absl::StrCat("no answer from node ", node, "; trying again"));
  }
  v1::Attempt* attempt = LiveAttempt(entry);
  if (attempt == nullptr || entry.stopping) return;
  if (now_.monotonic >= entry.exit_deadline) {
    LateExits(entry, *attempt);
    return Evaluate(entry);
  }
  if (now_.monotonic < entry.deadline) return;
  if (entry.job.state() == v1::JOB_STATE_STARTING) {
    std::vector<std::string> late;
    for (size_t rank = 0; rank < entry.ranks.size(); ++rank) {
      const v1::ObservedRank& observed = entry.ranks[rank].observed;
      if (observed.state() == v1::RANK_STATE_READY || observed.state() == v1::RANK_STATE_RUNNING) continue;
      late.push_back(absl::StrCat("rank ", rank, observed.phase().empty() ? "" : " in ", observed.phase()));
    }
    v1::Cause cause;
    cause.set_cause_class(v1::CAUSE_CLASS_HANG);
    cause.set_phase("start");
    cause.set_message(absl::StrCat("not all ranks were ready within fault_tolerance.start_timeout_seconds (",
                                   entry.job.spec().fault_tolerance().start_timeout_seconds(),
                                   " s): ", absl::StrJoin(late, ", ")));
    TakeFault(entry, *attempt, std::move(cause));
    return Evaluate(entry);
  }
  if (entry.job.state() != v1::JOB_STATE_PAUSING) return;
  if (entry.draining) {
    StopNow(entry);
    Emit(entry, "DrainTimedOut", "no durable checkpoint in time; stopping at the last one");
    return Evaluate(entry);
  }
  entry.stop_requested = false;
  entry.exit_deadline = absl::InfiniteDuration();
  const std::string message = absl::StrCat("the pause was given up: no durable checkpoint within ",
                                           entry.job.spec().fault_tolerance().pause_timeout_seconds(),
                                           " s (fault_tolerance.pause_timeout_seconds)");
  const bool ready = attempt->has_ready_time();
  entry.deadline = ready ? absl::InfiniteDuration()
                         : now_.monotonic + absl::Seconds(entry.job.spec().fault_tolerance().start_timeout_seconds());
  SetState(entry, ready ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_STARTING, "PauseTimedOut", message);
  TouchNodesOf(entry);
  Emit(entry, "PauseTimedOut", message);
}

}  // namespace slipway::server::core
