#include "server/core/state.h"

#include <algorithm>

namespace slipway::server::core {
namespace {

std::string WithoutPrefix(const std::string& name, size_t prefix) {
  return name.size() > prefix ? name.substr(prefix) : name;
}

}  // namespace

bool IsHeld(const v1::Job& job) {
  return std::any_of(job.conditions().begin(), job.conditions().end(), [](const v1::JobCondition& condition) {
    return condition.type() == kHeldCondition && condition.status();
  });
}

std::string StateName(v1::JobState state) {
  return WithoutPrefix(v1::JobState_Name(state), std::string("JOB_STATE_").size());
}

std::string CauseName(v1::CauseClass cause_class) {
  return WithoutPrefix(v1::CauseClass_Name(cause_class), std::string("CAUSE_CLASS_").size());
}

const v1::Attempt* LiveAttempt(const JobEntry& entry) {
  if (entry.job.attempts_size() == 0) return nullptr;
  const v1::Attempt& last = entry.job.attempts(entry.job.attempts_size() - 1);
  return last.has_end_time() ? nullptr : &last;
}

v1::Attempt* LiveAttempt(JobEntry& entry) {
  return const_cast<v1::Attempt*>(LiveAttempt(static_cast<const JobEntry&>(entry)));
}

int WorldSize(const v1::TrainingSpec& spec) {
  const v1::ParallelismSpec& p = spec.parallelism();
  return std::max(1, p.data_parallel_size()) * std::max(1, p.tensor_model_parallel_size()) *
         std::max(1, p.pipeline_model_parallel_size()) * std::max(1, p.context_parallel_size());
}

void RestoreAfterRestart(ClusterState& state, const Now& now) {
  const absl::Duration lease_end = now.monotonic + state.options.agent_lease + state.options.lease_margin;
  for (auto& [id, entry] : state.jobs) {
    state.next_sequence = std::max(state.next_sequence, entry.submit_sequence + 1);
    entry.preflight = entry.preflight == Preflight::kDone ? Preflight::kDone : Preflight::kNeeded;
    const v1::Attempt* attempt = LiveAttempt(entry);
    if (attempt == nullptr) {
      const v1::JobState job_state = entry.job.state();
      if (job_state == v1::JOB_STATE_QUEUED || job_state == v1::JOB_STATE_RECOVERING) {
        state.waiting.insert({entry.submit_sequence, id});
      }
      continue;
    }
    state.active.insert(id);
    entry.ranks.assign(static_cast<size_t>(attempt->world_size()), RankView{});
    const v1::FaultToleranceSpec& limits = entry.job.spec().fault_tolerance();
    if (entry.job.state() == v1::JOB_STATE_STARTING) {
      entry.deadline = now.monotonic + absl::Seconds(limits.start_timeout_seconds());
    } else if (entry.job.state() == v1::JOB_STATE_PAUSING) {
      entry.deadline = now.monotonic + absl::Seconds(limits.pause_timeout_seconds());
    }
    for (const v1::RankPlacement& placement : attempt->placements()) {
      state.nodes[placement.node_id()].node.set_id(placement.node_id());
    }
  }
  for (auto& [id, entry] : state.nodes) {
    entry.node.set_state(v1::NODE_STATE_UNREACHABLE);
    entry.lease_end = lease_end;
    entry.desired_revision = state.desired_base;
  }
}

}  // namespace slipway::server::core
