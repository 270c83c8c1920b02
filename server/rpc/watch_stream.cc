#include "server/rpc/watch_stream.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kBatch = 64;  // jobs or events fetched at once

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchJobsResponse>,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  WatchStream(const v1::WatchJobsRequest& request, Coordinator* coordinator)
      : coordinator_(coordinator), job_(request.job()), cursor_(request.after_revision()) {
    snapshot_ = request.after_revision() == 0;
  }

  void Begin(bool valid) {
    self_ = shared_from_this();
    absl::MutexLock lock(&mutex_);
    if (!valid) {
      return FinishOnce(WithReason(absl::InvalidArgumentError("after_revision: is negative"), "BAD_REVISION"));
    }
    std::weak_ptr<WatchStream> weak = weak_from_this();
    subscription_ = coordinator_->watchers().Subscribe([weak](Wake wake) {
      if (const auto stream = weak.lock()) stream->OnWake(wake);
    });
    Advance();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) return FinishOnce(absl::CancelledError("the reader has gone"));
    queue_.pop_front();
    Advance();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    FinishOnce(absl::CancelledError("the reader has gone"));
  }

  void OnDone() override {
    coordinator_->watchers().Unsubscribe(subscription_);
    self_.reset();
  }

 private:
  using Response = v1::WatchJobsResponse;

  void OnWake(Wake wake) {
    absl::MutexLock lock(&mutex_);
    if (wake == Wake::kClose) {
      return FinishOnce(WithReason(absl::UnavailableError("the server is shutting down"), "SHUTTING_DOWN"));
    }
    news_ = true;
    bookmark_ = bookmark_ || wake == Wake::kBookmark;
    Advance();
  }

  // Writes what is there, else fetches what may be there.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
      return;
    }
    if (fetching_ || (!news_ && !snapshot_)) return;
    fetching_ = true;
    news_ = false;
    coordinator_->Run([stream = shared_from_this()](Coordinator::Turn& turn) -> Coordinator::Completion {
      auto fetched = std::make_shared<std::deque<Response>>();
      absl::Status status = stream->Fetch(turn, fetched.get());
      return [stream, fetched, status](const absl::Status& stored) { stream->Take(*fetched, status, stored); };
    });
  }

  // On the coordinator's thread; only one at a time, so the cursor is this function's while it runs.
  absl::Status Fetch(Coordinator::Turn& turn, std::deque<Response>* out) {
    if (id_.empty() && !job_.empty()) {
      SLIPWAY_ASSIGN_OR_RETURN(id_, turn.Resolve(job_));
    }
    if (FetchesSnapshot()) {
      FetchSnapshot(turn, out);
      return absl::OkStatus();
    }
    absl::StatusOr<std::vector<v1::JobEvent>> events = turn.EventsAfter(cursor_, kBatch);
    if (!events.ok()) {
      return WithReason(events.status(), "REVISION_COMPACTED",
                        {{"oldest_revision", absl::StrCat(coordinator_->store().compacted_revision())}});
    }
    more_ = events->size() == kBatch;
    for (v1::JobEvent& event : *events) {
      cursor_ = event.revision();
      if (!id_.empty() && event.job_id() != id_) continue;
      Response& response = out->emplace_back();
      if (turn.state().jobs.contains(event.job_id())) {
        *response.mutable_job() = turn.Describe(event.job_id(), false);
      }
      *response.mutable_event() = std::move(event);
    }
    return absl::OkStatus();
  }

  bool FetchesSnapshot() {
    absl::MutexLock lock(&mutex_);
    return snapshot_;
  }

  void FetchSnapshot(Coordinator::Turn& turn, std::deque<Response>* out) {
    if (cursor_ == 0) cursor_ = turn.state().revision;  // changes from here on come as events
    const auto& jobs = turn.state().jobs;
    auto it = id_.empty() ? jobs.upper_bound(last_job_) : jobs.find(id_);
    for (; it != jobs.end() && out->size() < kBatch; ++it) {
      *out->emplace_back().mutable_snapshot() = turn.Describe(it->first, false);
      last_job_ = it->first;
      if (!id_.empty()) break;
    }
    if (!id_.empty() || it == jobs.end()) {
      out->emplace_back().mutable_bookmark()->set_revision(cursor_);
      absl::MutexLock lock(&mutex_);
      snapshot_ = false;
      news_ = true;
    }
  }

  void Take(std::deque<Response>& fetched, const absl::Status& status, const absl::Status& stored) {
    absl::MutexLock lock(&mutex_);
    fetching_ = false;
    if (!status.ok()) return FinishOnce(status);
    if (!stored.ok()) {
      return FinishOnce(WithReason(absl::UnavailableError(std::string(stored.message())), "STORE_UNAVAILABLE"));
    }
    for (Response& response : fetched) queue_.push_back(std::move(response));
    if (more_) news_ = true;
    if (bookmark_ && queue_.empty() && !snapshot_ && !more_) {
      bookmark_ = false;
      queue_.emplace_back().mutable_bookmark()->set_revision(cursor_);
    }
    Advance();
  }

  void FinishOnce(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(status));
  }

  Coordinator* const coordinator_;
  const std::string job_;
  std::shared_ptr<WatchStream> self_;
  int64_t subscription_ = 0;

  // Of the one fetch in flight (and, between fetches, of nobody).
  std::string id_;
  int64_t cursor_;
  std::string last_job_;
  bool more_ = false;

  absl::Mutex mutex_;
  std::deque<Response> queue_ ABSL_GUARDED_BY(mutex_);  // its front may be in the middle of a write
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool fetching_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool snapshot_ ABSL_GUARDED_BY(mutex_) = false;
  bool news_ ABSL_GUARDED_BY(mutex_) = true;
  bool bookmark_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobsResponse>* StartWatch(const v1::WatchJobsRequest& request,
                                                            Coordinator* coordinator) {
  auto stream = std::make_shared<WatchStream>(request, coordinator);
  stream->Begin(request.after_revision() >= 0);
  return stream.get();
}

}  // namespace slipway::server::rpc
