#include "server/rpc/metric_stream.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kStoredRecords = 10'000;  // more are thinned
constexpr size_t kLiveRecords = 1'024;

class MetricStream final : public grpc::ServerWriteReactor<v1::StreamMetricsResponse>,
                           public std::enable_shared_from_this<MetricStream> {
 public:
  MetricStream(const v1::StreamMetricsRequest& request, Coordinator* coordinator)
      : coordinator_(coordinator), request_(request) {}

  void Begin() {
    self_ = shared_from_this();
    std::weak_ptr<MetricStream> weak = weak_from_this();
    listener_ = std::make_shared<MetricListener>(kLiveRecords, [weak] {
      if (const auto stream = weak.lock()) stream->Wake();
    });
    // On the coordinator's thread no record falls between the stored ones and the live ones.
    coordinator_->Run([stream = shared_from_this()](Coordinator::Turn& turn) -> Coordinator::Completion {
      absl::Status status = stream->Open(turn);
      return [stream, status](const absl::Status&) { stream->Opened(status); };
    });
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) return FinishOnce(absl::CancelledError("the reader has gone"));
    Advance();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    FinishOnce(absl::CancelledError("the reader has gone"));
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&mutex_);
      if (!id_.empty()) coordinator_->metric_hub().Unsubscribe(id_, listener_.get());
    }
    self_.reset();
  }

 private:
  absl::Status Open(Coordinator::Turn& turn) {
    SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request_.job()));
    SLIPWAY_ASSIGN_OR_RETURN(std::vector<v1::MetricRecord> records,
                             coordinator_->metric_store().Query(id, request_.from_step(), 0, kStoredRecords));
    absl::MutexLock lock(&mutex_);
    if (finished_) return absl::OkStatus();
    id_ = id;
    for (v1::MetricRecord& record : records) *stored_.emplace_back().mutable_record() = std::move(record);
    ended_ = core::IsFinal(turn.state().jobs.at(id).job.state());
    coordinator_->metric_hub().Subscribe(id, listener_);
    return absl::OkStatus();
  }

  void Opened(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) return FinishOnce(status);
    opened_ = true;
    Advance();
  }

  void Wake() {
    absl::MutexLock lock(&mutex_);
    Advance();
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || !opened_) return;
    if (!stored_.empty()) {
      outgoing_ = std::move(stored_.front());
      stored_.pop_front();
    } else if (std::optional<MetricListener::Item> item = listener_->Next()) {
      outgoing_.Clear();
      *outgoing_.mutable_record() = std::move(item->record);
      outgoing_.set_dropped(item->dropped);
    } else {
      if (ended_ || listener_->closed()) FinishOnce(absl::OkStatus());
      return;
    }
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void FinishOnce(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(status));
  }

  Coordinator* const coordinator_;
  const v1::StreamMetricsRequest request_;
  std::shared_ptr<MetricStream> self_;
  std::shared_ptr<MetricListener> listener_;

  absl::Mutex mutex_;
  std::string id_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::StreamMetricsResponse> stored_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  v1::StreamMetricsResponse outgoing_;
};

}  // namespace

grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StartMetricStream(const v1::StreamMetricsRequest& request,
                                                                       Coordinator* coordinator) {
  auto stream = std::make_shared<MetricStream>(request, coordinator);
  stream->Begin();
  return stream.get();
}

}  // namespace slipway::server::rpc
