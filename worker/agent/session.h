// The agent's stream to the coordinator: connects, reconnects with backoff for ever, writes what is waiting and hands
// on what comes. State is not queued: only the newest observation waits. Metrics and log chunks wait in bounded queues.
// Thread-safe; callbacks come from the session's threads.
#ifndef SLIPWAY_WORKER_AGENT_SESSION_H_
#define SLIPWAY_WORKER_AGENT_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "slipway/v1/agent_service.grpc.pb.h"
#include "slipway/v1/agent_service.pb.h"

namespace slipway::worker::agent {

class Session {
 public:
  struct Callbacks {
    // The hello of the next connection; its session number rises with each.
    std::function<slipway::v1::AgentHello()> hello;
    std::function<void(slipway::v1::CoordinatorMessage)> message;
    // The stream has ended; everything that was said on it may be lost.
    std::function<void()> disconnected;
  };

  // `target` is what gRPC connects to: HOST:PORT, or one of its URIs.
  Session(std::string target, Callbacks callbacks);
  // Ends the stream at once.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // On the present connection only: nothing when there is none.
  void SetObserved(slipway::v1::ObservedState observed);
  void Heartbeat(int64_t applied_revision);
  // Kept over reconnects; the oldest go when there are too many.
  void AddMetrics(slipway::v1::MetricBatch batch);
  // False when the queue is full or there is no connection.
  bool OfferLogChunk(const slipway::v1::LogChunk& chunk);

  bool connected() const;
  int64_t dropped_metric_batches() const;
  // True when everything that was waiting has been written; false after `timeout`.
  bool Flush(absl::Duration timeout);

 private:
  using Stream = grpc::ClientReaderWriter<slipway::v1::AgentMessage, slipway::v1::CoordinatorMessage>;

  void Run();
  // One connection from beginning to end. True when the coordinator answered on it.
  bool RunStream(slipway::v1::AgentService::Stub& stub);
  void WriteLoop(Stream& stream);
  void TakeNext(slipway::v1::AgentMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SomethingWaits() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool WriterAwake() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool AllWritten() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const std::string target_;
  const Callbacks callbacks_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;      // the writer may write
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator has answered: observations may go
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the open stream
  std::optional<slipway::v1::ObservedState> observed_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> heartbeat_ ABSL_GUARDED_BY(mutex_);
  std::deque<slipway::v1::MetricBatch> metrics_ ABSL_GUARDED_BY(mutex_);
  std::deque<slipway::v1::LogChunk> log_chunks_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_metric_batches_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_SESSION_H_
