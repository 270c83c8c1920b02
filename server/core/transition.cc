#include "server/core/transition.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/timestamp.h"
#include "server/core/step.h"

namespace slipway::server::core {

Effects Step(ClusterState& state, const Event& event, const Now& now) {
  Effects effects;
  Transition transition(state, now, effects);
  std::visit([&](const auto& e) { transition.On(e); }, event);
  // Metrics and heartbeats come often and never make room.
  if (!std::holds_alternative<AgentMetrics>(event)) transition.Schedule();
  return effects;
}

JobEntry* Transition::Find(const std::string& id) {
  const auto it = state_.jobs.find(id);
  return it == state_.jobs.end() ? nullptr : &it->second;
}

void Transition::SetState(JobEntry& entry, v1::JobState state, absl::string_view reason, absl::string_view message) {
  entry.job.set_state(state);
  entry.job.set_state_reason(std::string(reason));
  entry.job.set_state_message(std::string(message));
  if (IsFinal(state)) *entry.job.mutable_end_time() = ToTimestamp(now_.wall);
}

void Transition::Emit(JobEntry& entry, absl::string_view type, absl::string_view message, const v1::Cause* cause) {
  v1::JobEvent event;
  event.set_revision(++state_.revision);
  event.set_job_id(entry.job.id());
  *event.mutable_time() = ToTimestamp(now_.wall);
  event.set_type(std::string(type));
  event.set_state(entry.job.state());
  event.set_message(std::string(message));
  if (cause != nullptr) *event.mutable_cause() = *cause;
  if (entry.job.attempts_size() > 0) event.set_epoch(entry.job.attempts(entry.job.attempts_size() - 1).epoch());
  event.set_step(entry.job.progress().step());
  entry.job.set_revision(state_.revision);
  entry.job.set_etag(absl::StrCat("r", state_.revision));
  *entry.job.mutable_update_time() = event.time();
  effects_.jobs.insert(entry.job.id());
  effects_.events.push_back(std::move(event));
  Reindex(entry);
}

void Transition::SetCondition(JobEntry& entry, absl::string_view type, bool status, absl::string_view reason,
                              absl::string_view message) {
  auto& conditions = *entry.job.mutable_conditions();
  auto it = std::find_if(conditions.begin(), conditions.end(),
                         [&](const v1::JobCondition& condition) { return condition.type() == type; });
  v1::JobCondition& condition = it != conditions.end() ? *it : *conditions.Add();
  condition.set_type(std::string(type));
  condition.set_status(status);
  condition.set_reason(std::string(reason));
  condition.set_message(std::string(message));
  *condition.mutable_last_transition_time() = ToTimestamp(now_.wall);
  effects_.jobs.insert(entry.job.id());
}

void Transition::Touch(const std::string& node_id) {
  const auto it = state_.nodes.find(node_id);
  if (it == state_.nodes.end()) return;
  if (!effects_.publish.contains(node_id)) ++it->second.desired_revision;
  // A node first says what it runs; then it hears what it should.
  if (it->second.reported) effects_.publish.insert(node_id);
}

void Transition::TouchNodesOf(const JobEntry& entry) {
  if (const v1::Attempt* attempt = LiveAttempt(entry)) {
    for (const v1::RankPlacement& placement : attempt->placements()) Touch(placement.node_id());
  }
  if (entry.preflight == Preflight::kRunning) Touch(entry.preflight_node);
}

void Transition::DropPreflight(JobEntry& entry) {
  if (entry.preflight == Preflight::kNeeded) return;
  if (entry.preflight == Preflight::kRunning) Touch(entry.preflight_node);
  entry.preflight = Preflight::kNeeded;
  entry.preflight_node.clear();
  entry.preflight_deadline = absl::InfiniteDuration();
  // A late answer must not be taken for the next preflight's.
  if (entry.preflight_epoch == entry.next_epoch) ++entry.next_epoch;
  effects_.jobs.insert(entry.job.id());
}

void Transition::DropPreflightsOn(const std::string& node_id) {
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) {
    JobEntry& entry = state_.jobs.at(id);
    if (entry.preflight != Preflight::kRunning || entry.preflight_node != node_id) continue;
    DropPreflight(entry);
    Reindex(entry);
  }
}

void Transition::Reindex(JobEntry& entry) {
  const bool live = LiveAttempt(entry) != nullptr;
  const v1::JobState state = entry.job.state();
  const bool waits = !live && (state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_RECOVERING);
  const std::pair<int64_t, std::string> key{entry.submit_sequence, entry.job.id()};
  if (waits) {
    state_.waiting.insert(key);
  } else {
    state_.waiting.erase(key);
  }
  if (live || entry.preflight == Preflight::kRunning) {
    state_.active.insert(entry.job.id());
  } else {
    state_.active.erase(entry.job.id());
  }
}

}  // namespace slipway::server::core
