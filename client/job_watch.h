// Follows one job through coordinator restarts: state and events by revision, metrics by step, on two background
// threads that reconnect by themselves. Next is to be called from one thread.
#ifndef SLIPWAY_CLIENT_JOB_WATCH_H_
#define SLIPWAY_CLIENT_JOB_WATCH_H_

#include <grpcpp/client_context.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/metrics.pb.h"

namespace slipway::client {

struct JobSeen {
  v1::Job job;
};
struct EventSeen {
  v1::JobEvent event;
  v1::Job job;  // after it
};
struct RecordSeen {
  v1::MetricRecord record;
  int64_t dropped = 0;  // lost before it
};
struct ConnectionLost {
  absl::Status status;
};
struct ConnectionBack {};
// The watch cannot go on; nothing comes after it.
struct WatchFailed {
  absl::Status status;
};
using WatchUpdate = std::variant<JobSeen, EventSeen, RecordSeen, ConnectionLost, ConnectionBack, WatchFailed>;

struct JobWatchOptions {
  std::string job_id;
  bool metrics = true;
  int64_t from_step = 0;
  absl::Duration reconnect_delay = absl::Milliseconds(500);
};

class JobWatch {
 public:
  // `connection` must outlive this object.
  JobWatch(Connection* connection, JobWatchOptions options);
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;
  ~JobWatch();

  // The next update, or nothing when none came within the timeout.
  std::optional<WatchUpdate> Next(absl::Duration timeout);

 private:
  // A stream that is being read, so that the destructor can cancel it.
  class Running;

  void FollowEvents();
  void FollowMetrics();
  // One connection's life; returns how it ended.
  absl::Status ReadEvents(int64_t* revision);
  absl::Status ReadMetrics(int64_t* from_step);
  // False when the watch is being destroyed.
  bool Pause();
  void Push(WatchUpdate update);

  Connection* const connection_;
  const JobWatchOptions options_;
  absl::Mutex mutex_;
  std::deque<WatchUpdate> updates_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* events_context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* metrics_context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread events_thread_;
  std::thread metrics_thread_;
};

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_JOB_WATCH_H_
