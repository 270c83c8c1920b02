// The steps that Step is made of: one Transition lives for one event. Internal to server/core.
#ifndef SLIPWAY_SERVER_CORE_TRANSITION_H_
#define SLIPWAY_SERVER_CORE_TRANSITION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/core/event.h"
#include "server/core/state.h"

namespace slipway::server::core {

class Transition {
 public:
  Transition(ClusterState& state, const Now& now, Effects& effects) : state_(state), now_(now), effects_(effects) {}

  // Verbs (verbs.cc).
  void On(const CreateJob& event);
  void On(const PauseJob& event);
  void On(const ResumeJob& event);
  void On(const CancelJob& event);
  void On(const HoldJob& event);
  void On(const ReleaseJob& event);
  void On(const CheckpointJob& event);
  void On(const Drain& event);

  // Agents (agent_events.cc).
  void On(const AgentConnected& event);
  void On(const AgentDisconnected& event);
  void On(const AgentHeartbeat& event);
  void On(const AgentObserved& event);
  void On(const AgentMetrics& event);

  // Time (deadlines.cc).
  void On(const Tick& event);

  // Starts preflights and gangs, oldest job first (schedule.cc).
  void Schedule();

 private:
  // verbs.cc
  JobEntry* FindForVerb(const std::string& id, const std::string& etag);
  void Refuse(const JobEntry& entry, absl::string_view verb, absl::string_view hint);
  void AskToStop(JobEntry& entry, absl::Duration timeout);

  // agent_events.cc
  bool RunsForNobody(const v1::ObservedAssignment& assignment);
  void TakeReport(JobEntry& entry, const v1::ObservedAssignment& assignment, const std::string& node_id);
  void TakePreflight(JobEntry& entry, const v1::PreflightResult& result);
  void TakeRank(JobEntry& entry, v1::Attempt& attempt, const v1::ObservedRank& observed);
  void TakeCheckpoints(JobEntry& entry, const v1::ObservedAssignment& assignment);
  void TakeFailedSave(JobEntry& entry, const v1::ObservedAssignment& assignment);
  void NoticeMissing(JobEntry& entry, NodeEntry& node);
  void AddLineage(JobEntry& entry, v1::Attempt& attempt);

  // deadlines.cc
  void CheckDeadlines(JobEntry& entry);
  void LateExits(JobEntry& entry, v1::Attempt& attempt);
  void LoseNode(NodeEntry& node);

  // attempt.cc
  void StartAttempt(JobEntry& entry, const std::vector<v1::RankPlacement>& placements);
  void Evaluate(JobEntry& entry);  // after new observations
  // The newest durable checkpoint that the attempt throws away by starting over; null when there is none.
  static const v1::Checkpoint* ForgottenCheckpoint(const JobEntry& entry, const v1::Attempt& attempt);
  void EvaluateReady(JobEntry& entry, v1::Attempt& attempt);
  void EvaluateExits(JobEntry& entry, v1::Attempt& attempt);
  void TakeFault(JobEntry& entry, v1::Attempt& attempt, v1::Cause cause);
  void StopNow(JobEntry& entry);  // no process may live any more
  bool AllGone(const JobEntry& entry, const v1::Attempt& attempt) const;
  bool NodeIsClear(const JobEntry& entry, const v1::Attempt& attempt, const std::string& node_id) const;
  void EndAttempt(JobEntry& entry, v1::Attempt& attempt);
  void Recover(JobEntry& entry, const v1::Attempt& attempt);
  void BecomePaused(JobEntry& entry, const v1::Attempt& attempt);
  void Succeed(JobEntry& entry);
  void Fail(JobEntry& entry, const v1::Cause& cause, absl::string_view reason, absl::string_view message);

  // transition.cc
  JobEntry* Find(const std::string& id);
  void SetState(JobEntry& entry, v1::JobState state, absl::string_view reason, absl::string_view message);
  void Emit(JobEntry& entry, absl::string_view type, absl::string_view message, const v1::Cause* cause = nullptr);
  void SetCondition(JobEntry& entry, absl::string_view type, bool status, absl::string_view reason,
                    absl::string_view message);
  void Touch(const std::string& node_id);  // its desired state may have changed
  void TouchNodesOf(const JobEntry& entry);
  void DropPreflight(JobEntry& entry);  // a running or finished one no longer counts
  void DropPreflightsOn(const std::string& node_id);
  void Reindex(JobEntry& entry);

  ClusterState& state_;
  const Now& now_;
  Effects& effects_;
};

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_TRANSITION_H_
