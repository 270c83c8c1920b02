// A node's agent: one loop that owns the node's attempts, between the coordinator's stream above and the workers' lines
// below. The loop never waits for the network; what blocks (the stream, log reads) has threads of its own and talks to
// the loop through an inbox.
#ifndef SLIPWAY_WORKER_AGENT_AGENT_H_
#define SLIPWAY_WORKER_AGENT_AGENT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/posix_file_system.h"
#include "common/unique_fd.h"
#include "slipway/v1/agent_service.pb.h"
#include "worker/agent/attempt.h"
#include "worker/agent/coordinator_lease.h"
#include "worker/agent/log_service.h"
#include "worker/agent/metrics_endpoint.h"
#include "worker/agent/node_context.h"
#include "worker/agent/oom_watch.h"
#include "worker/agent/options.h"
#include "worker/agent/session.h"
#include "worker/agent/worker_hub.h"

namespace slipway::worker::agent {

// The code to leave with when an agent could not be made (link::AgentExit).
int ExitCodeOf(const absl::Status& status);

class Agent {
 public:
  // Takes the state directory (FailedPrecondition, naming pid and path, while another agent has it), finds what an
  // earlier agent left there, and begins to connect. The signals that Run handles must be blocked already.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(const AgentOptions& options);
  ~Agent();

  // Until SIGTERM or SIGINT, or as an orphan (--orphan-timeout). A plain agent leaves its workers running for the next
  // one; a local one stops them with a checkpoint first, and kills them at the second signal.
  void Run();

 private:
  struct Disconnected {};
  using Mail = std::variant<slipway::v1::CoordinatorMessage, Disconnected>;

  explicit Agent(const AgentOptions& options);
  absl::Status SetUp();
  absl::Status FindSlots();
  absl::Status FindBinaries();
  void FindRendezvousAddress();
  void AdoptLeftOvers();
  slipway::v1::AgentHello MakeHello();

  void Wait();
  void HandleSignals();
  void HandleMail();
  void Handle(const slipway::v1::CoordinatorMessage& message);
  void Apply(const slipway::v1::DesiredState& desired);
  bool TakeReport(const RankKey& key, const slipway::worker::v1::WorkerReport& report);
  void WatchLease();
  void StopWorkers(const std::string& reason);
  void AdvanceAttempts();
  void Publish(bool at_once);
  void UpdateFigures();
  bool AnyAlive() const;
  bool Finished();
  void Post(Mail mail);
  bool MayPrint(const std::string& job_id, int64_t epoch, int rank);

  const AgentOptions options_;
  RealClock clock_;
  PosixFileSystem files_;
  std::unique_ptr<FileLock> lock_;
  NodeContext node_;
  UniqueFd signals_;
  UniqueFd wake_;
  std::optional<CoordinatorLease> lease_;
  OomWatch oom_{clock_};
  AgentFigures figures_;

  std::map<AttemptKey, std::unique_ptr<Attempt>> attempts_;
  int64_t applied_revision_ = 0;
  bool welcomed_ = false;
  absl::Duration heartbeat_interval_ = absl::Seconds(1);
  absl::Duration last_heartbeat_ = -absl::InfiniteDuration();
  int64_t observed_sequence_ = 0;
  std::string published_;  // the last observation, without ages
  absl::Duration published_at_ = -absl::InfiniteDuration();
  bool lease_stop_logged_ = false;
  // Set once this agent is about to end: why, and since when.
  std::optional<absl::Duration> stopping_since_;
  bool kill_now_ = false;
  bool leave_now_ = false;

  absl::Mutex mutex_;
  std::deque<Mail> inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<RankKey, bool>> may_print_ ABSL_GUARDED_BY(mutex_);  // as of the loop's last turn

  // Their threads use the above.
  std::unique_ptr<WorkerHub> hub_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<LogService> logs_;
  std::unique_ptr<MetricsEndpoint> metrics_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_AGENT_H_
