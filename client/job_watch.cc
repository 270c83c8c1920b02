#include "client/job_watch.h"

#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace slipway::client {
namespace {

// A slow terminal must not make this process grow without bound: beyond this the oldest metrics are left out.
constexpr size_t kMaxQueued = 100'000;

// The server went away, or ended the stream on purpose (it restarts, or this reader was too slow): ask again.
bool IsPassing(const absl::Status& status) {
  return status.ok() || status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kCancelled || status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kInternal || status.code() == absl::StatusCode::kUnknown;
}

}  // namespace

// Registers the context of a stream for as long as it is read.
class JobWatch::Running {
 public:
  Running(JobWatch* watch, grpc::ClientContext** slot, grpc::ClientContext* context) : watch_(watch), slot_(slot) {
    absl::MutexLock lock(&watch_->mutex_);
    *slot_ = context;
    if (watch_->stopping_) context->TryCancel();
  }
  ~Running() {
    absl::MutexLock lock(&watch_->mutex_);
    *slot_ = nullptr;
  }

 private:
  JobWatch* const watch_;
  grpc::ClientContext** const slot_;
};

JobWatch::JobWatch(Connection* connection, JobWatchOptions options)
    : connection_(connection), options_(std::move(options)) {
  events_thread_ = std::thread([this] { FollowEvents(); });
  if (options_.metrics) metrics_thread_ = std::thread([this] { FollowMetrics(); });
}

JobWatch::~JobWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (events_context_ != nullptr) events_context_->TryCancel();
    if (metrics_context_ != nullptr) metrics_context_->TryCancel();
  }
  events_thread_.join();
  if (metrics_thread_.joinable()) metrics_thread_.join();
}

std::optional<WatchUpdate> JobWatch::Next(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto has_update = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !updates_.empty(); };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&has_update), timeout)) return std::nullopt;
  WatchUpdate update = std::move(updates_.front());
  updates_.pop_front();
  return update;
}

void JobWatch::Push(WatchUpdate update) {
  absl::MutexLock lock(&mutex_);
  if (updates_.size() >= kMaxQueued) {
    const auto oldest = std::find_if(updates_.begin(), updates_.end(), [](const WatchUpdate& queued) {
      return std::holds_alternative<RecordSeen>(queued);
    });
    if (oldest != updates_.end()) updates_.erase(oldest);
  }
  updates_.push_back(std::move(update));
}

bool JobWatch::Pause() {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.reconnect_delay);
}

void JobWatch::FollowEvents() {
  int64_t revision = 0;
  bool lost = false;
  while (true) {
    const int64_t before = revision;
    absl::Status status = ReadEvents(&revision);
    if (status.code() == absl::StatusCode::kOutOfRange && before != 0) {
      revision = 0;  // the events in between are gone: take a new snapshot
      continue;
    }
    if (!IsPassing(status)) {
      absl::MutexLock lock(&mutex_);
      if (!stopping_) updates_.push_back(WatchFailed{std::move(status)});
      return;
    }
    if (!Pause()) return;
    if (!lost && status.code() == absl::StatusCode::kUnavailable) Push(ConnectionLost{status});
    lost = status.code() == absl::StatusCode::kUnavailable;
  }
}

absl::Status JobWatch::ReadEvents(int64_t* revision) {
  grpc::ClientContext context;
  const Running running(this, &events_context_, &context);
  v1::WatchJobsRequest request;
  request.set_job(options_.job_id);
  request.set_after_revision(*revision);
  auto stream = connection_->jobs().WatchJobs(&context, request);
  v1::WatchJobsResponse response;
  bool first = true;
  while (stream->Read(&response)) {
    if (std::exchange(first, false)) Push(ConnectionBack{});
    if (response.has_snapshot()) {
      Push(JobSeen{std::move(*response.mutable_snapshot())});
    } else if (response.has_event()) {
      *revision = std::max(*revision, response.event().revision());
      Push(EventSeen{std::move(*response.mutable_event()), std::move(*response.mutable_job())});
    } else if (response.has_bookmark()) {
      *revision = std::max(*revision, response.bookmark().revision());
    }
  }
  return connection_->Named(stream->Finish());
}

void JobWatch::FollowMetrics() {
  int64_t from_step = options_.from_step;
  while (true) {
    // Metrics are best effort: whether the job can be watched at all is the other thread's to say.
    const absl::Status status = ReadMetrics(&from_step);
    if (!IsPassing(status) || !Pause()) return;
  }
}

absl::Status JobWatch::ReadMetrics(int64_t* from_step) {
  grpc::ClientContext context;
  const Running running(this, &metrics_context_, &context);
  v1::StreamMetricsRequest request;
  request.set_job(options_.job_id);
  request.set_from_step(*from_step);
  auto stream = connection_->metrics().StreamMetrics(&context, request);
  v1::StreamMetricsResponse response;
  while (stream->Read(&response)) {
    // After a recovery steps come again, so this follows the newest record and not the highest.
    if (response.record().has_step()) *from_step = response.record().step().step() + 1;
    Push(RecordSeen{std::move(*response.mutable_record()), response.dropped()});
  }
  return connection_->Named(stream->Finish());
}

}  // namespace slipway::client
