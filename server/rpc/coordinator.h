// The pure core brought to life: one thread that owns the state, applies events in the order they come, stores what
// changed in one synced batch per round (group commit) and only then answers, publishes and wakes watchers.
//
// All public functions may be called from any thread and do not block (Start, Stop and the constructor apart). Work and
// completions run on the coordinator's thread and must not block either.
#ifndef SLIPWAY_SERVER_RPC_COORDINATOR_H_
#define SLIPWAY_SERVER_RPC_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "server/core/event.h"
#include "server/core/state.h"
#include "server/core/telemetry.h"
#include "server/rpc/metric_hub.h"
#include "server/rpc/wakeups.h"
#include "server/store/metric_store.h"
#include "server/store/store.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/job.pb.h"

namespace slipway::server::rpc {

// Takes what agents should know. Called on the coordinator's thread; must not block.
class DesiredSink {
 public:
  virtual ~DesiredSink() = default;
  virtual void Publish(const std::string& node_id, const v1::DesiredState& desired) = 0;
  virtual void RenewLeases() = 0;
};

struct CoordinatorOptions {
  core::Options core;
  std::string data_dir;
  // Submits are refused while less than this is free where the store lives.
  int64_t min_free_bytes = 32 << 20;
  absl::Duration keep_requests = absl::Hours(48);
  // Events beyond this many are compacted.
  int64_t keep_events = 200'000;
  absl::Duration tick = absl::Milliseconds(250);
  absl::Duration bookmark_interval = absl::Seconds(10);
};

class Coordinator {
 public:
  // What work sees: the state, and the way to change it. Lives for one piece of work.
  class Turn {
   public:
    const core::ClusterState& state() const { return coordinator_.state_; }
    const core::Now& now() const { return now_; }
    core::Effects Apply(const core::Event& event) { return coordinator_.Apply(event, now_); }
    // An id, or a name that only one job has. NotFound, or InvalidArgument for a name of several jobs.
    absl::StatusOr<std::string> Resolve(const std::string& id_or_name) const;
    v1::Job Describe(const std::string& id, bool with_history) const;
    // Events after `revision`, oldest first, at most `limit`; OutOfRange when compacted.
    absl::StatusOr<std::vector<v1::JobEvent>> EventsAfter(int64_t revision, size_t limit) const;

   private:
    friend class Coordinator;
    Turn(Coordinator& coordinator, const core::Now& now) : coordinator_(coordinator), now_(now) {}
    Coordinator& coordinator_;
    core::Now now_;
  };

  // Runs after the round's batch was stored, with the store's verdict.
  using Completion = std::function<void(const absl::Status& stored)>;
  using Work = std::function<Completion(Turn&)>;

  struct Answer {
    v1::Job job;
    int64_t number = 0;  // of a checkpoint-now
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;
  // A verb with its request id: the same id answers the same again.
  struct Mutation {
    std::string method;
    std::string request_id;
    std::string body_hash;
    std::string job;  // an id or a name; empty for CreateJob
    bool creates = false;
    // Makes the event; runs once the job is found. `id` is the job's.
    std::function<absl::StatusOr<core::Event>(Turn&, const std::string& id)> event;
  };

  // None of the pointers is owned; all outlive the coordinator.
  Coordinator(CoordinatorOptions options, store::Store* store, store::MetricStore* metrics, Clock* clock,
              core::Telemetry* telemetry);
  ~Coordinator();

  // Loads the store and starts the thread. `sink` outlives Stop.
  absl::Status Start(DesiredSink* sink);
  // Refuses further work with Unavailable, finishes the round and joins the thread.
  void Stop();

  void Run(Work work);
  void Mutate(Mutation mutation, Done done);
  void Post(core::Event event);
  // Refuses new jobs from now on, and lets running ones stop with a checkpoint.
  void Drain(bool hurry);

  Wakeups& watchers() { return watchers_; }
  MetricHub& metric_hub() { return metric_hub_; }
  store::MetricStore& metric_store() { return *metrics_; }
  const store::Store& store() const { return *store_; }
  // False while the store cannot be written; with the reason.
  bool ready() const { return ready_; }
  std::string unready_reason() const;
  absl::Time start_time() const { return start_time_; }
  const CoordinatorOptions& options() const { return options_; }

 private:
  struct Pending {  // applied, not stored yet
    std::set<std::string> jobs;
    std::set<std::string> nodes;
    std::vector<v1::JobEvent> events;
    std::vector<storage::v1::RequestRecord> requests;
    std::vector<std::string> expired_requests;
    std::set<std::string> publish;
  };

  void Loop();
  core::Now Now() const;
  core::Effects Apply(const core::Event& event, const core::Now& now);
  void TakeMetrics(const v1::MetricBatch& batch);
  void OnTick(const core::Now& now);
  void ExpireRequests(absl::Time now);
  void CompactEvents();
  absl::Status Commit();
  void PublishCommitted();
  void SetUnready(const std::string& reason);
  absl::StatusOr<Answer> RunMutation(Turn& turn, const Mutation& mutation);
  absl::Status CheckWritable(bool creates);

  const CoordinatorOptions options_;
  store::Store* const store_;
  store::MetricStore* const metrics_;
  Clock* const clock_;
  core::Telemetry* const telemetry_;
  DesiredSink* sink_ = nullptr;
  absl::Time start_time_;

  // The coordinator's thread only.
  core::ClusterState state_;
  std::map<std::string, storage::v1::RequestRecord> requests_;
  Pending pending_;
  std::deque<v1::JobEvent> recent_;  // the newest events, stored
  absl::Duration next_tick_;
  absl::Duration next_second_;
  absl::Duration next_bookmark_;
  absl::Duration next_retry_;
  int64_t event_count_ = 0;
  bool draining_ = false;
  std::vector<std::pair<absl::Duration, std::string>>
      ending_;  // jobs whose last metrics may still come, and until when

  Wakeups watchers_;
  MetricHub metric_hub_;
  std::atomic<bool> ready_ = false;
  mutable absl::Mutex mutex_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string unready_reason_ ABSL_GUARDED_BY(mutex_) = "the store is being read";
  std::thread thread_;
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_COORDINATOR_H_
