// What to do so that the processes of an attempt become what the coordinator wants. Pure: desired and observed in,
// steps out; called again and again, each time with what is so now. Nothing here remembers anything.
#ifndef SLIPWAY_WORKER_AGENT_RECONCILER_H_
#define SLIPWAY_WORKER_AGENT_RECONCILER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace slipway::worker::agent {

enum class Life {
  kAbsent,  // never started here
  kAlive,   // its shim or its worker lives
  kEnded,   // confirmed: no process any more
};

struct RankObservation {
  int rank = 0;
  Life life = Life::kAbsent;
  bool fault = false;                             // it ended otherwise than completed or stopped as asked
  bool secondary = false;                         // … and only because of another rank's fault
  absl::Duration ended_at;                        // monotonic, as seen here
  std::optional<absl::Duration> said_outcome_at;  // its last word came, but it may still live
  std::optional<absl::Duration> terminated_at;    // SIGTERM was sent
};

struct AttemptObservation {
  std::vector<RankObservation> ranks;  // every rank that is placed here or has a directory here
  Life preflight = Life::kAbsent;
  bool preflight_result = false;
  absl::Duration preflight_started_at;
  bool rendezvous_known = false;  // rank 0's address: bound here or told by the coordinator
};

enum class Phase {
  kUnknown,  // the coordinator has not spoken since this agent started: change nothing
  kPreflight,
  kRun,
  kStopped,   // no process may live: TERM, and KILL after the grace
  kReleased,  // not listed any more: KILL, then forget
};

struct AttemptDesire {
  Phase phase = Phase::kUnknown;
  absl::Duration termination_grace;
  absl::Duration preflight_timeout = absl::Minutes(10);
  bool may_start = true;       // false: this agent is about to end
  bool lease_expired = false;  // nothing may live, whatever the phase says
};

enum class StepKind { kStartPreflight, kKillPreflight, kStartRank, kTerminate, kKill, kRelease };
enum class KillReason { kNone, kAsked, kPeerFault, kLease, kLingers, kTimeout };

struct Step {
  StepKind kind;
  int rank = -1;
  KillReason reason = KillReason::kNone;

  friend bool operator==(const Step&, const Step&) = default;
};

// kKill and kKillPreflight are repeated until the process is gone; whoever carries them out escalates.
std::vector<Step> Reconcile(const AttemptDesire& desire, const AttemptObservation& observed, absl::Duration now);

// A rank that failed only because of another one's fault may end before it. The others are given this long to show the
// real cause before they are killed.
inline constexpr absl::Duration kSettleTime = absl::Milliseconds(500);
// A worker that has said its last word and does not leave is ended.
inline constexpr absl::Duration kExitTimeout = absl::Seconds(60);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_RECONCILER_H_
