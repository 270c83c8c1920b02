// The processes of one attempt on this node: what they are, what they said, and the steps that make them what the
// coordinator wants. Everything that must survive the agent lies in the attempt's directory (attempt_key.h).
// Not thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_ATTEMPT_H_
#define SLIPWAY_WORKER_AGENT_ATTEMPT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/agent/attempt_key.h"
#include "worker/agent/node_context.h"
#include "worker/agent/rank_fault.h"
#include "worker/agent/reconciler.h"
#include "worker/agent/shim_process.h"
#include "worker/agent/worker_hub.h"

namespace slipway::worker::agent {

class Attempt {
 public:
  // Finds what an earlier agent left of it. `node` must outlive the attempt.
  Attempt(AttemptKey key, const NodeContext& node);

  const AttemptKey& key() const { return key_; }
  // What the coordinator wants of it from now on; null: it is released.
  void SetDesired(const slipway::v1::DesiredAssignment* assignment);

  // Whatever the coordinator says: finish a step, save, leave, and start nothing more. Stays.
  void AskToStop() {
    stop_asked_ = true;
    desire_.may_start = false;
  }
  // False when no such rank runs here, or the report comes from another process than the shim's.
  bool TakeReport(int rank, const slipway::worker::v1::WorkerReport& report);
  WorkerHub::Control ControlOf() const;  // the same for all ranks

  // Looks at the processes and takes the steps that are due. False once the attempt is forgotten.
  bool Advance(bool lease_expired, bool recently_out_of_memory);

  // Without `with_ages`, equal states give equal messages.
  slipway::v1::ObservedAssignment Observe(bool with_ages) const;
  bool AnyAlive() const;
  int AliveRanks() const;
  std::vector<int> Ranks() const;
  // Whether a rank runs or is still to be started; a negative number asks for any.
  bool MayPrint(int rank) const;

 private:
  struct Rank {
    std::unique_ptr<ShimProcess> process;
    slipway::worker::v1::WorkerReport report;
    absl::Duration reported_at;
    std::optional<absl::Duration> said_outcome_at;
    std::optional<RankVerdict> verdict;
  };

  Rank& RankOf(int rank);
  void LoadLeftOvers();
  // After this, every rank that has ended has a verdict.
  void JudgeAllEnded(bool recently_out_of_memory);
  void JudgeEnded(int number, Rank& rank, bool recently_out_of_memory);
  void TakePreflightResult();
  AttemptObservation Observation() const;
  void Take(const Step& step);
  void StartPreflight();
  void StartRank(int rank);
  absl::StatusOr<slipway::worker::v1::WorkerLaunch> LaunchOf(int rank) const;
  slipway::v1::ObservedRank ObserveRank(int number, const Rank& rank, bool with_ages) const;
  void Release();

  const AttemptKey key_;
  const NodeContext& node_;
  const std::string directory_;
  slipway::v1::DesiredAssignment assignment_;  // the last one that was listed
  AttemptDesire desire_;
  bool stop_asked_ = false;
  bool released_ = false;
  std::string rendezvous_address_;  // bound here
  std::map<int, Rank> ranks_;
  std::unique_ptr<ShimProcess> preflight_;
  std::optional<slipway::v1::PreflightResult> preflight_result_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_ATTEMPT_H_
