#include "server/core/desired.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace slipway::server::core {
namespace {

v1::DesiredAssignment Common(const JobEntry& entry) {
  v1::DesiredAssignment assignment;
  assignment.set_job_id(entry.job.id());
  *assignment.mutable_spec() = entry.job.spec();
  assignment.set_output_dir(entry.job.output_dir());
  assignment.set_checkpoint_dir(entry.job.checkpoint_dir());
  *assignment.mutable_lineage() = entry.job.lineage();
  assignment.set_termination_grace_seconds(entry.job.spec().fault_tolerance().termination_grace_seconds());
  return assignment;
}

v1::DesiredAssignment ForPreflight(const JobEntry& entry) {
  v1::DesiredAssignment assignment = Common(entry);
  assignment.set_epoch(entry.preflight_epoch);
  assignment.set_phase(v1::DESIRED_PHASE_PREFLIGHT);
  assignment.set_world_size(WorldSize(entry.job.spec()));
  return assignment;
}

v1::DesiredAssignment ForAttempt(const JobEntry& entry, const v1::Attempt& attempt, const std::string& node_id) {
  v1::DesiredAssignment assignment = Common(entry);
  assignment.set_epoch(attempt.epoch());
  assignment.set_phase(entry.stopping ? v1::DESIRED_PHASE_STOPPED : v1::DESIRED_PHASE_RUN);
  assignment.set_world_size(attempt.world_size());
  for (const v1::RankPlacement& placement : attempt.placements()) {
    if (placement.node_id() == node_id) *assignment.add_ranks() = placement;
  }
  *assignment.mutable_all_ranks() = attempt.placements();
  assignment.set_rendezvous_address(entry.rendezvous_address);
  assignment.set_nonce(absl::StrCat(entry.nonce, "-", attempt.epoch()));
  assignment.set_stop_requested(entry.stop_requested);
  assignment.set_checkpoint_requests(entry.job.checkpoint_requests());
  return assignment;
}

}  // namespace

v1::DesiredState DesiredFor(const ClusterState& state, const std::string& node_id) {
  v1::DesiredState desired;
  const auto node = state.nodes.find(node_id);
  if (node == state.nodes.end()) return desired;
  desired.set_revision(node->second.desired_revision);
  for (const std::string& id : state.active) {
    const JobEntry& entry = state.jobs.at(id);
    if (const v1::Attempt* attempt = LiveAttempt(entry)) {
      const bool here = std::any_of(attempt->placements().begin(), attempt->placements().end(),
                                    [&](const v1::RankPlacement& p) { return p.node_id() == node_id; });
      if (here) *desired.add_assignments() = ForAttempt(entry, *attempt, node_id);
    } else if (entry.preflight == Preflight::kRunning && entry.preflight_node == node_id) {
      *desired.add_assignments() = ForPreflight(entry);
    }
  }
  return desired;
}

}  // namespace slipway::server::core
