#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/timestamp.h"
#include "server/core/transition.h"

namespace slipway::server::core {
namespace {

// Whether saving works: set at the first save that failed.
constexpr char kSavingCondition[] = "Saving";

bool SavingIsBroken(const v1::Job& job) {
  return std::any_of(job.conditions().begin(), job.conditions().end(), [](const v1::JobCondition& condition) {
    return condition.type() == kSavingCondition && !condition.status();
  });
}

}  // namespace

void Transition::On(const AgentConnected& event) {
  NodeEntry& entry = state_.nodes[event.hello.node_id()];
  v1::Node& node = entry.node;
  const bool known = node.hostname() == event.hello.hostname();
  node.set_id(event.hello.node_id());
  node.set_hostname(event.hello.hostname());
  node.set_state(v1::NODE_STATE_CONNECTED);
  *node.mutable_slots() = event.hello.slots();
  *node.mutable_connect_time() = ToTimestamp(now_.wall);
  *node.mutable_last_heartbeat_time() = ToTimestamp(now_.wall);
  node.set_agent_version(event.hello.version());
  *node.mutable_allowed_roots() = event.hello.allowed_roots();
  entry.session_number = event.hello.session_number();
  entry.lease_end = now_.monotonic + state_.options.agent_lease + state_.options.lease_margin;
  entry.desired_revision = std::max(entry.desired_revision, state_.desired_base);
  entry.applied_revision = -1;
  entry.reported = false;
  entry.present.clear();
  if (!known) effects_.nodes.insert(node.id());
}

void Transition::On(const AgentDisconnected& event) {
  const auto it = state_.nodes.find(event.node_id);
  if (it == state_.nodes.end() || it->second.session_number != event.session_number) return;
  if (it->second.node.state() == v1::NODE_STATE_CONNECTED) it->second.node.set_state(v1::NODE_STATE_UNREACHABLE);
  DropPreflightsOn(event.node_id);  // another node does them
}

void Transition::On(const AgentHeartbeat& event) {
  const auto it = state_.nodes.find(event.node_id);
  if (it == state_.nodes.end() || it->second.node.state() != v1::NODE_STATE_CONNECTED) return;
  NodeEntry& node = it->second;
  *node.node.mutable_last_heartbeat_time() = ToTimestamp(now_.wall);
  node.lease_end = now_.monotonic + state_.options.agent_lease + state_.options.lease_margin;
  if (event.applied_revision == node.applied_revision) return;
  node.applied_revision = event.applied_revision;
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) Evaluate(state_.jobs.at(id));
}

void Transition::On(const AgentObserved& event) {
  const auto it = state_.nodes.find(event.node_id);
  if (it == state_.nodes.end() || it->second.node.state() != v1::NODE_STATE_CONNECTED) return;
  NodeEntry& node = it->second;
  const bool first = !node.reported;
  node.reported = true;
  node.stale = false;
  node.present.clear();
  for (const v1::ObservedAssignment& assignment : event.observed.assignments()) {
    node.present.insert({assignment.job_id(), assignment.epoch()});
    node.stale = node.stale || RunsForNobody(assignment);
  }
  for (const v1::ObservedAssignment& assignment : event.observed.assignments()) {
    if (JobEntry* entry = Find(assignment.job_id())) TakeReport(*entry, assignment, event.node_id);
  }
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) {
    NoticeMissing(state_.jobs.at(id), node);
    Evaluate(state_.jobs.at(id));
  }
  if (first) Touch(event.node_id);
}

bool Transition::RunsForNobody(const v1::ObservedAssignment& assignment) {
  const bool runs = std::any_of(assignment.ranks().begin(), assignment.ranks().end(),
                                [](const v1::ObservedRank& rank) { return rank.state() != v1::RANK_STATE_EXITED; });
  const JobEntry* entry = Find(assignment.job_id());
  const v1::Attempt* attempt = entry == nullptr ? nullptr : LiveAttempt(*entry);
  return runs && (attempt == nullptr || attempt->epoch() != assignment.epoch());
}

void Transition::TakeReport(JobEntry& entry, const v1::ObservedAssignment& assignment, const std::string& node_id) {
  if (assignment.has_preflight() && entry.preflight == Preflight::kRunning && entry.preflight_node == node_id &&
      assignment.epoch() == entry.preflight_epoch) {
    TakePreflight(entry, assignment.preflight());
  }
  v1::Attempt* attempt = LiveAttempt(entry);
  if (attempt == nullptr || attempt->epoch() != assignment.epoch()) return;  // an old one: not desired any more
  if (!assignment.rendezvous_address().empty() && assignment.rendezvous_address() != entry.rendezvous_address &&
      attempt->placements(0).node_id() == node_id) {
    entry.rendezvous_address = assignment.rendezvous_address();
    TouchNodesOf(entry);
  }
  for (const v1::ObservedRank& observed : assignment.ranks()) {
    const bool here = observed.rank() >= 0 && observed.rank() < attempt->placements_size() &&
                      attempt->placements(observed.rank()).node_id() == node_id;
    if (here) TakeRank(entry, *attempt, observed);
  }
  TakeFailedSave(entry, assignment);
  TakeCheckpoints(entry, assignment);
}

void Transition::TakePreflight(JobEntry& entry, const v1::PreflightResult& result) {
  Touch(entry.preflight_node);
  entry.preflight_deadline = absl::InfiniteDuration();
  if (!result.ok()) {
    entry.preflight = Preflight::kNeeded;
    const std::string message = absl::StrJoin(result.faults(), "\n", [](std::string* out, const v1::SpecFault& fault) {
      absl::StrAppend(out, fault.path(), fault.path().empty() ? "" : ": ", fault.message());
    });
    SetCondition(entry, "Preflight", false, "Faults", message);
    v1::Cause cause;
    cause.set_cause_class(v1::CAUSE_CLASS_USER_ERROR);
    cause.set_message(message);
    cause.set_node_id(entry.preflight_node);
    cause.set_phase("preflight");
    *cause.mutable_time() = ToTimestamp(now_.wall);
    return Fail(entry, cause, "PreflightFailed", message);
  }
  entry.preflight = Preflight::kDone;
  std::string message = "ok";
  if (result.has_dataset()) {
    const v1::DatasetReport& data = result.dataset();
    message = absl::StrCat(data.samples(), " samples, ", data.tokens(), " tokens");
    // Not set for indexed data, where every token has a loss.
    if (data.loss_tokens() > 0) {
      absl::StrAppend(&message, ", ", data.loss_tokens(), " with loss, ", data.truncated(), " truncated, ",
                      data.dropped(), " dropped");
    }
    for (const std::string& note : data.notes()) absl::StrAppend(&message, "\n", note);
  }
  SetCondition(entry, "Preflight", true, "Passed", message);
  Emit(entry, "PreflightPassed", message);
}

void Transition::TakeRank(JobEntry& entry, v1::Attempt& attempt, const v1::ObservedRank& observed) {
  RankView& rank = entry.ranks[static_cast<size_t>(observed.rank())];
  rank.seen = true;
  if (rank.observed.state() == v1::RANK_STATE_EXITED) return;  // final
  rank.observed = observed;
  attempt.set_last_step(std::max(attempt.last_step(), observed.step()));
  if (observed.rank() == 0 && observed.step() > 0) entry.job.mutable_progress()->set_step(observed.step());
  effects_.progressed.insert(entry.job.id());
}

void Transition::TakeFailedSave(JobEntry& entry, const v1::ObservedAssignment& assignment) {
  if (!assignment.has_failed_save()) return;
  const v1::Cause& cause = assignment.failed_save();
  const bool known = cause.step() == entry.failed_save.step() && cause.message() == entry.failed_save.message() &&
                     FromTimestamp(cause.time()) == FromTimestamp(entry.failed_save.time());
  if (known) return;
  entry.failed_save = cause;
  const std::string text =
      absl::StrCat("the checkpoint of step ", cause.step(), " failed, training goes on: ", cause.message());
  SetCondition(entry, kSavingCondition, false, "SaveFailed", text);
  Emit(entry, "CheckpointFailed", text, &cause);
}

void Transition::TakeCheckpoints(JobEntry& entry, const v1::ObservedAssignment& assignment) {
  for (const v1::Checkpoint& checkpoint : assignment.committed_checkpoints()) {
    auto& known = *entry.job.mutable_checkpoints();
    const auto it = std::find_if(known.begin(), known.end(), [&](const v1::Checkpoint& other) {
      return other.step() == checkpoint.step() && other.epoch() == checkpoint.epoch();
    });
    if (checkpoint.state() == v1::CHECKPOINT_STATE_DELETED) {
      if (it == known.end()) continue;
      known.erase(it);
      effects_.jobs.insert(entry.job.id());
      continue;
    }
    if (it != known.end()) {
      if (checkpoint.request_number() <= it->request_number()) continue;
      // Asked for when it was durable already.
      it->set_request_number(checkpoint.request_number());
      Emit(entry, "CheckpointCommitted",
           absl::StrCat("step ", checkpoint.step(), " answers request ", checkpoint.request_number()));
      continue;
    }
    if (v1::Attempt* attempt = LiveAttempt(entry); attempt != nullptr && !attempt->has_ready_time()) {
      if (ForgottenCheckpoint(entry, *attempt) != nullptr) continue;  // no part of the run
      AddLineage(entry, *attempt);                                    // it was ready, whether or not we saw it
    }
    v1::Checkpoint& added = *known.Add();
    added = checkpoint;
    added.set_job_id(entry.job.id());
    added.set_state(v1::CHECKPOINT_STATE_COMMITTED);
    entry.job.mutable_progress()->set_last_checkpoint_step(checkpoint.step());
    if (SavingIsBroken(entry.job)) {
      SetCondition(entry, kSavingCondition, true, "Saved",
                   absl::StrCat("the checkpoint of step ", checkpoint.step(), " is durable"));
    }
    Emit(entry, "CheckpointCommitted",
         absl::StrCat(
             "step ", checkpoint.step(), ": ", checkpoint.path(),
             checkpoint.request_number() > 0 ? absl::StrCat(" (request ", checkpoint.request_number(), ")") : ""));
  }
}

void Transition::NoticeMissing(JobEntry& entry, NodeEntry& node) {
  v1::Attempt* attempt = LiveAttempt(entry);
  if (attempt == nullptr || entry.stopping || node.present.contains({entry.job.id(), attempt->epoch()})) return;
  for (const v1::RankPlacement& placement : attempt->placements()) {
    if (placement.node_id() != node.node.id()) continue;
    // An attempt that was ready was known to every one of its nodes.
    const RankView& rank = entry.ranks[static_cast<size_t>(placement.rank())];
    if (!attempt->has_ready_time() && !rank.seen) continue;
    v1::Cause cause;
    cause.set_cause_class(v1::CAUSE_CLASS_NODE_LOST);
    cause.set_rank(placement.rank());
    cause.set_node_id(node.node.id());
    cause.set_message("the node's agent no longer knows of this attempt");
    return TakeFault(entry, *attempt, std::move(cause));
  }
}

void Transition::AddLineage(JobEntry& entry, v1::Attempt& attempt) {
  const v1::ObservedRank& first = entry.ranks[0].observed;
  attempt.set_resumed(first.resumed());
  attempt.set_resumed_from_epoch(first.resumed_from_epoch());
  attempt.set_resumed_from_step(first.start_step());
  for (const v1::LineageEntry& known : entry.job.lineage()) {
    if (known.epoch() == attempt.epoch()) return;
  }
  v1::LineageEntry& fork = *entry.job.add_lineage();
  fork.set_epoch(attempt.epoch());
  fork.set_from_epoch(first.resumed() ? first.resumed_from_epoch() : 0);
  fork.set_from_step(first.resumed() ? first.start_step() : 0);
  entry.job.mutable_progress()->set_step(std::max(first.start_step(), first.step()));
  TouchNodesOf(entry);
}

void Transition::On(const AgentMetrics& event) {
  JobEntry* entry = Find(event.batch.job_id());
  if (entry == nullptr) return;
  // The last records may come after the end of the attempt.
  const int attempts = entry->job.attempts_size();
  if (attempts == 0 || entry->job.attempts(attempts - 1).epoch() != event.batch.epoch()) return;
  if (IsFinal(entry->job.state())) effects_.jobs.insert(entry->job.id());
  v1::JobProgress& progress = *entry->job.mutable_progress();
  for (const v1::MetricRecord& record : event.batch.records()) {
    if (record.has_eval()) *progress.mutable_last_eval_metrics() = record.eval();
    if (!record.has_step()) continue;
    const v1::StepMetrics& step = record.step();
    *progress.mutable_last_step_metrics() = step;
    progress.set_step(step.step());
    const double seconds = step.step_seconds();
    entry->step_seconds = entry->step_seconds <= 0 ? seconds : 0.9 * entry->step_seconds + 0.1 * seconds;
    const auto left = static_cast<double>(std::max<int64_t>(0, progress.train_iters() - step.step()));
    progress.set_eta_seconds(left * entry->step_seconds);
  }
  effects_.progressed.insert(entry->job.id());
}

}  // namespace slipway::server::core
