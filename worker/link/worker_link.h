// A worker's line to its agent: a thread that keeps the connection, sends what the worker says of itself, and holds
// what the agent wants of it. The agent may die and come back: the thread reconnects for ever and then repeats the
// current report, so nothing that was said is lost. Metrics are repeated until a living agent has acknowledged them (it
// may get some twice); the newest 4096 are kept while nobody listens.
//
// Thread-safe. No call waits for the network or the disk, except the destructor, which waits for the thread (well under
// a second), and WaitUntilSent.
#ifndef SLIPWAY_WORKER_LINK_WORKER_LINK_H_
#define SLIPWAY_WORKER_LINK_WORKER_LINK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/unique_fd.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/link/frame_channel.h"

namespace slipway::worker::link {

class WorkerLink {
 public:
  struct Options {
    std::string socket_path;
    std::string job_id;
    int64_t epoch = 0;
    int32_t rank = 0;
    std::string state_dir;  // where the current report is also kept as a file; empty: nowhere
    absl::Duration lease = absl::Minutes(2);
    // Called once, from the link's thread, when no word came from the agent for `lease`: checkpoint if you can and
    // leave. It must not wait for the link.
    std::function<void()> on_lease_expired;
  };
  static Options OptionsFrom(const slipway::worker::v1::WorkerLaunch& launch);

  // Starts the thread. `clock` and `files` must outlive the link.
  WorkerLink(Options options, const Clock& clock, FileSystem& files);
  ~WorkerLink();
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  // What the worker says. The state starts as STARTING.
  void SetPhase(std::string_view phase);
  // Loaded, groups made, at its first step: the state becomes READY.
  void SetReady(int64_t start_step, bool resumed, int64_t resumed_from_epoch, std::string_view spec_hash);
  // `step` is finished: the state becomes RUNNING.
  void SetStep(int64_t step);
  void AddMetrics(slipway::v1::MetricRecord record);
  // A checkpoint has become durable, or (with its state) was deleted.
  void AddCommitted(slipway::v1::Checkpoint checkpoint);
  // A save failed and the work goes on.
  void SetFailedSave(const slipway::v1::Cause& cause);
  // The last word. Write the outcome file too (rank_files.h): the socket may be broken just now.
  void SetOutcome(slipway::v1::RankOutcome outcome, const slipway::v1::Cause& cause);

  // What the agent wants; false and 0 until it has spoken.
  bool stop_requested() const;
  int64_t checkpoint_requests() const;
  // Stays true once the lease has run out.
  bool lease_expired() const;

  // Until everything said so far has gone into a connection to the agent and the report's file shows it; false after
  // `timeout`. Call it before the process ends.
  bool WaitUntilSent(absl::Duration timeout);

 private:
  // Only the link's thread touches it.
  struct Connection {
    std::unique_ptr<FrameChannel> channel;
    absl::Duration next_attempt = -absl::InfiniteDuration();
    absl::Duration retry_delay;
  };

  void Run();
  void Connect(absl::Duration now);
  void Disconnect(absl::Duration now);
  void SendReport(absl::Duration now);
  void ReceiveControls(absl::Duration now);
  void PersistReport(absl::Duration now);
  void CheckLease(absl::Duration now);
  void Poll();
  absl::Duration SendDueIn(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMetrics(slipway::worker::v1::WorkerReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MetricsWait() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void MarkChanged(bool urgent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllSent() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sent_change_ == change_ && metrics_.empty(); }
  bool AllKept() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return AllSent() && (options_.state_dir.empty() || persisted_ == to_persist_);
  }

  const Options options_;
  const Clock& clock_;
  FileSystem& files_;
  UniqueFd wake_;  // eventfd

  Connection connection_;
  int64_t sequence_ = 0;
  absl::Duration last_frame_;  // from the agent
  // Metrics that the agent has not acknowledged, with the sequence of the report that carried them.
  std::deque<std::pair<int64_t, slipway::v1::MetricRecord>> in_flight_;
  absl::Duration last_send_ = -absl::InfiniteDuration();
  absl::Duration next_persist_ = -absl::InfiniteDuration();
  int64_t sending_change_ = -1;  // the change up to which the channel's bytes report; -1: none on this connection

  mutable absl::Mutex mutex_;
  slipway::worker::v1::WorkerReport report_ ABSL_GUARDED_BY(mutex_);
  std::deque<slipway::v1::MetricRecord> metrics_ ABSL_GUARDED_BY(mutex_);
  int64_t change_ ABSL_GUARDED_BY(mutex_) = 0;  // rises with each call that says something
  int64_t sent_change_ ABSL_GUARDED_BY(mutex_) = -1;
  bool urgent_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t to_persist_ ABSL_GUARDED_BY(mutex_) = 1;  // rises with each change that belongs in the report's file
  int64_t persisted_ ABSL_GUARDED_BY(mutex_) = 0;   // up to which the file is written
  bool stop_requested_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t checkpoint_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  bool lease_expired_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_WORKER_LINK_H_
