// What the coordinator knows: jobs, their attempts and the nodes. Plain data, changed only by Step (step.h). No I/O, no
// clock, no threads: not thread-safe, and equal sequences of events give equal states.
#ifndef SLIPWAY_SERVER_CORE_STATE_H_
#define SLIPWAY_SERVER_CORE_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/node.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::server::core {

// Monotonic time decides (leases, deadlines); wall time is only written down.
struct Now {
  absl::Duration monotonic;
  absl::Time wall;
};

struct Options {
  absl::Duration agent_lease = absl::Minutes(5);
  // Added to a lease before a silent node counts as lost: time to end its processes.
  absl::Duration lease_margin = absl::Seconds(20);
  absl::Duration preflight_timeout = absl::Minutes(12);
  int preflight_tries = 3;
  // After the first rank left as planned, the others must be gone within this.
  absl::Duration exit_timeout = absl::Minutes(5);
  absl::Duration max_backoff = absl::Seconds(30);
  // How long a drain waits for checkpoints before it ends the workers.
  absl::Duration drain_timeout = absl::Minutes(2);
};

enum class Preflight { kNeeded, kRunning, kDone };

// What is known of one rank of the current attempt. Not stored: agents repeat it.
struct RankView {
  bool seen = false;
  bool handled = false;  // its end has been taken into account
  v1::ObservedRank observed;
};

struct JobEntry {
  // Stored.
  v1::Job job;
  v1::TrainingSpec submitted_spec;
  int64_t submit_sequence = 0;  // FIFO order
  int64_t next_epoch = 1;
  std::string nonce;  // part of every rendezvous key of this job
  Preflight preflight = Preflight::kNeeded;
  bool stop_requested = false;           // finish a step, save, leave
  bool stopping = false;                 // no process of the attempt may live
  bool draining = false;                 // stopped for the coordinator's own end: goes back to the queue, not to PAUSED
  std::map<int, int> restarts_by_cause;  // by v1::CauseClass
  int restarts_without_progress = 0;
  int64_t best_step = 0;  // highest step that any attempt reached
  v1::Cause failed_save;  // the newest failed save that has become an event: reports repeat it

  // Not stored.
  std::vector<RankView> ranks;
  bool asked_to_stop = false;  // at some time in this attempt
  std::string rendezvous_address;
  std::string preflight_node;
  int64_t preflight_epoch = 0;  // of the last preflight; equal to next_epoch until an attempt starts
  int preflight_tries = 0;
  absl::Duration deadline = absl::InfiniteDuration();       // of the state
  absl::Duration exit_deadline = absl::InfiniteDuration();  // of ranks that should follow the first to leave
  absl::Duration preflight_deadline = absl::InfiniteDuration();
  absl::Duration not_before = -absl::InfiniteDuration();  // of the next attempt (backoff)
  double step_seconds = 0;                                // smoothed, for the ETA
};

struct NodeEntry {
  v1::Node node;
  int64_t session_number = 0;
  absl::Duration lease_end;                           // when nothing that it was told can still run
  int64_t desired_revision = 0;                       // rises whenever what DesiredFor says may have changed
  int64_t applied_revision = 0;                       // as its agent last said
  bool reported = false;                              // it has sent its full state in this session
  bool stale = false;                                 // it still runs ranks of an attempt that has ended
  std::set<std::pair<std::string, int64_t>> present;  // (job, epoch) of its last report
};

struct ClusterState {
  Options options;
  int64_t revision = 0;
  int64_t next_sequence = 1;
  // Desired revisions start here, so that they rise over restarts of the coordinator.
  int64_t desired_base = 0;
  bool draining = false;
  std::map<std::string, JobEntry> jobs;
  std::map<std::string, NodeEntry> nodes;

  // Indices over `jobs`, kept by Step.
  std::set<std::pair<int64_t, std::string>> waiting;  // by submit_sequence: QUEUED, and RECOVERING without processes
  std::set<std::string> active;                       // may have something on a node
};

inline bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

// It keeps its place in the queue and does not start: its condition kHeldCondition is true.
inline constexpr char kHeldCondition[] = "Held";
bool IsHeld(const v1::Job& job);

// "RUNNING".
std::string StateName(v1::JobState state);
// "NODE_LOST".
std::string CauseName(v1::CauseClass cause_class);

// The attempt whose processes may live and whose slots are held; null when there is none.
const v1::Attempt* LiveAttempt(const JobEntry& entry);
v1::Attempt* LiveAttempt(JobEntry& entry);

// Data × tensor × pipeline × context parallel sizes.
int WorldSize(const v1::TrainingSpec& spec);

// Rebuilds the indices and everything else that is not stored, after `jobs`, `nodes` and `revision` were loaded.
// Every node counts as unreachable, with a whole lease before it.
void RestoreAfterRestart(ClusterState& state, const Now& now);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_STATE_H_
