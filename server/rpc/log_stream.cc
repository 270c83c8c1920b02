#include "server/rpc/log_stream.h"

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kMaxChunk = 64 << 10;
constexpr size_t kMaxQueuedBytes = 64 << 20;  // a reader that is further behind is let go

struct PlannedRead {
  std::string node_id;
  v1::LogRead read;
};

class LogStream final : public grpc::ServerWriteReactor<v1::StreamLogsResponse>,
                        public std::enable_shared_from_this<LogStream> {
 public:
  LogStream(const v1::StreamLogsRequest& request, Coordinator* coordinator, AgentSessions* agents, LogRouter* router)
      : coordinator_(coordinator), agents_(agents), router_(router), request_(request) {}

  void Begin() {
    self_ = shared_from_this();
    coordinator_->Run([stream = shared_from_this()](Coordinator::Turn& turn) -> Coordinator::Completion {
      absl::StatusOr<std::vector<PlannedRead>> reads = stream->Plan(turn);
      return [stream, reads = std::move(reads)](const absl::Status&) { stream->Open(reads); };
    });
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) return FinishOnce(absl::CancelledError("the reader has gone"));
    queued_bytes_ -= queue_.front().data().size();
    queue_.pop_front();
    Advance();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    FinishOnce(absl::CancelledError("the reader has gone"));
  }

  void OnDone() override {
    std::map<int64_t, std::string> open;
    {
      absl::MutexLock lock(&mutex_);
      open = std::exchange(open_, {});
    }
    for (const auto& [id, node] : open) {
      router_->Close(id);
      agents_->SendLogReadCancel(node, id);
    }
    self_.reset();
  }

 private:
  // One read for each attempt and node that is asked for.
  absl::StatusOr<std::vector<PlannedRead>> Plan(Coordinator::Turn& turn) {
    SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request_.job()));
    const v1::Job& job = turn.state().jobs.at(id).job;
    std::vector<const v1::Attempt*> attempts;
    for (const v1::Attempt& attempt : job.attempts()) {
      const bool newest = request_.epoch() == 0 && &attempt == &job.attempts(job.attempts_size() - 1);
      if (newest || request_.epoch() == -1 || request_.epoch() == attempt.epoch()) attempts.push_back(&attempt);
    }
    if (attempts.empty() && request_.epoch() > 0) {
      return WithReason(absl::NotFoundError(absl::StrCat("job ", id, " has no attempt ", request_.epoch())),
                        "ATTEMPT_NOT_FOUND");
    }
    std::vector<PlannedRead> reads;
    for (const v1::Attempt* attempt : attempts) {
      std::set<std::string> nodes;
      for (const v1::RankPlacement& placement : attempt->placements()) {
        if (!request_.has_rank() || request_.rank() == placement.rank()) nodes.insert(placement.node_id());
      }
      if (nodes.empty()) {
        return WithReason(absl::NotFoundError(absl::StrCat("attempt ", attempt->epoch(), " of job ", id,
                                                           " has no rank ", request_.rank())),
                          "RANK_NOT_FOUND");
      }
      for (const std::string& node : nodes) {
        PlannedRead& planned = reads.emplace_back();
        planned.node_id = node;
        planned.read.set_job_id(id);
        planned.read.set_epoch(attempt->epoch());
        planned.read.set_follow(request_.follow());
        planned.read.set_tail_lines(request_.tail_lines());
        if (request_.has_rank()) planned.read.set_rank(request_.rank());
      }
    }
    return reads;
  }

  void Open(const absl::StatusOr<std::vector<PlannedRead>>& reads) {
    if (!reads.ok()) {
      absl::MutexLock lock(&mutex_);
      return FinishOnce(reads.status());
    }
    std::weak_ptr<LogStream> weak = weak_from_this();
    std::vector<PlannedRead> planned = *reads;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      for (PlannedRead& read : planned) {
        const int64_t id = router_->Open(read.node_id, [weak](const v1::LogChunk& chunk) {
          if (const auto stream = weak.lock()) stream->Take(chunk);
        });
        read.read.set_read_id(id);
        open_.emplace(id, read.node_id);
      }
      opened_ = true;
    }
    for (const PlannedRead& read : planned) {
      const absl::Status sent = agents_->SendLogRead(read.node_id, read.read);
      if (sent.ok()) continue;
      absl::MutexLock lock(&mutex_);
      return FinishOnce(WithReason(sent, "AGENT_UNAVAILABLE", {{"node", read.node_id}}));
    }
    absl::MutexLock lock(&mutex_);
    Advance();
  }

  void Take(const v1::LogChunk& chunk) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    for (size_t at = 0; at < chunk.data().size(); at += kMaxChunk) {
      v1::StreamLogsResponse& response = queue_.emplace_back();
      response.set_epoch(chunk.epoch());
      response.set_rank(chunk.rank());
      response.set_data(chunk.data().substr(at, kMaxChunk));
      queued_bytes_ += response.data().size();
    }
    if (chunk.end()) open_.erase(chunk.read_id());
    if (!chunk.error().empty() && error_.ok()) error_ = absl::UnavailableError(chunk.error());
    if (queued_bytes_ > kMaxQueuedBytes) {
      return FinishOnce(WithReason(absl::ResourceExhaustedError("the reader is too far behind; read one rank at a time "
                                                                "or with tail_lines"),
                                   "SLOW_READER"));
    }
    Advance();
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (opened_ && open_.empty()) {
      FinishOnce(error_);
    }
  }

  void FinishOnce(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(status));
  }

  Coordinator* const coordinator_;
  AgentSessions* const agents_;
  LogRouter* const router_;
  const v1::StreamLogsRequest request_;
  std::shared_ptr<LogStream> self_;

  absl::Mutex mutex_;
  std::map<int64_t, std::string> open_ ABSL_GUARDED_BY(mutex_);       // read → node
  std::deque<v1::StreamLogsResponse> queue_ ABSL_GUARDED_BY(mutex_);  // its front may be in the middle of a write
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::StreamLogsResponse>* StartLogStream(const v1::StreamLogsRequest& request,
                                                                 Coordinator* coordinator, AgentSessions* agents,
                                                                 LogRouter* router) {
  auto stream = std::make_shared<LogStream>(request, coordinator, agents, router);
  stream->Begin();
  return stream.get();
}

}  // namespace slipway::server::rpc
