#include "server/rpc/agent_sessions.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/rich_status.h"
#include "spdlog/spdlog.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kMaxQueuedReads = 256;

}  // namespace

// Lives until gRPC is done with it and the sessions' table let go.
class AgentSession final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>,
                           public std::enable_shared_from_this<AgentSession> {
 public:
  explicit AgentSession(AgentSessions* owner) : owner_(owner) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  const std::string& node_id() const { return hello_.node_id(); }
  int64_t number() const { return hello_.session_number(); }

  void SetDesired(const v1::DesiredState& desired) {
    absl::MutexLock lock(&mutex_);
    if (!welcomed_) return;  // the whole state follows the welcome
    desired_ = desired;
    WriteNext();
  }

  void RenewLease() {
    absl::MutexLock lock(&mutex_);
    if (owner_->clock_->MonotonicNow() - last_heard_ > owner_->options_.silence) return;
    renew_ = true;
    WriteNext();
  }

  absl::Status Send(v1::CoordinatorMessage message) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return absl::UnavailableError(absl::StrCat("the agent of node ", node_id(), " has gone"));
    if (queue_.size() >= kMaxQueuedReads) return absl::ResourceExhaustedError("too many log reads at this node");
    queue_.push_back(std::move(message));
    WriteNext();
    return absl::OkStatus();
  }

  void Close(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    FinishOnce(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    {
      absl::MutexLock lock(&mutex_);
      last_heard_ = owner_->clock_->MonotonicNow();
      if (finished_) return;
    }
    const absl::Status status = Take(incoming_);
    if (!status.ok()) return Close(status);
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) return FinishOnce(absl::UnavailableError("the agent cannot be reached"));
    WriteNext();
  }

  void OnCancel() override { Close(absl::CancelledError("the agent has gone")); }

  void OnDone() override {
    owner_->Unregister(this);
    if (registered_) {
      owner_->coordinator_->Post(core::AgentDisconnected{node_id(), number()});
      owner_->logs_->NodeGone(node_id());
      spdlog::info("node {} ({}) disconnected", node_id(), hello_.hostname());
    }
    self_.reset();
  }

 private:
  absl::Status Take(v1::AgentMessage& message) {
    if (!registered_) return TakeHello(message);
    Coordinator& coordinator = *owner_->coordinator_;
    switch (message.message_case()) {
      case v1::AgentMessage::kObserved:
        coordinator.Post(core::AgentObserved{node_id(), std::move(*message.mutable_observed())});
        break;
      case v1::AgentMessage::kHeartbeat:
        coordinator.Post(core::AgentHeartbeat{node_id(), message.heartbeat().applied_revision()});
        break;
      case v1::AgentMessage::kMetrics:
        coordinator.Post(core::AgentMetrics{std::move(*message.mutable_metrics())});
        break;
      case v1::AgentMessage::kLogChunk:
        owner_->logs_->Deliver(message.log_chunk());
        break;
      case v1::AgentMessage::kHello:
        return absl::InvalidArgumentError("a second hello in one session");
      case v1::AgentMessage::MESSAGE_NOT_SET:
        break;  // of a newer agent
    }
    return absl::OkStatus();
  }

  absl::Status TakeHello(v1::AgentMessage& message) {
    if (!message.has_hello() || message.hello().node_id().empty()) {
      return absl::InvalidArgumentError("a session begins with a hello that names the node");
    }
    hello_ = std::move(*message.mutable_hello());
    const absl::Status status = owner_->Register(shared_from_this());
    if (!status.ok()) return status;
    registered_ = true;
    spdlog::info("node {} ({}) connected with {} slots, agent {}", node_id(), hello_.hostname(), hello_.slots_size(),
                 hello_.version());
    {
      absl::MutexLock lock(&mutex_);
      v1::CoordinatorMessage welcome;
      welcome.mutable_welcome()->set_lease_seconds(absl::ToDoubleSeconds(owner_->options_.agent_lease));
      welcome.mutable_welcome()->set_heartbeat_seconds(absl::ToDoubleSeconds(owner_->options_.heartbeat));
      welcome.mutable_welcome()->set_worker_lease_seconds(absl::ToDoubleSeconds(owner_->options_.worker_lease));
      queue_.push_back(std::move(welcome));
      welcomed_ = true;
      WriteNext();
    }
    owner_->coordinator_->Post(core::AgentConnected{hello_});
    return absl::OkStatus();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      outgoing_ = std::move(queue_.front());
      queue_.pop_front();
    } else if (desired_.has_value()) {
      outgoing_.Clear();
      *outgoing_.mutable_desired() = std::move(*desired_);
      desired_.reset();
    } else if (renew_) {
      outgoing_.Clear();
      outgoing_.mutable_lease_renewal();
      renew_ = false;
    } else {
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

  AgentSessions* const owner_;
  std::shared_ptr<AgentSession> self_;
  v1::AgentMessage incoming_;
  v1::AgentHello hello_;     // set before the session is registered
  bool registered_ = false;  // reading callbacks only

  absl::Mutex mutex_;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool renew_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration last_heard_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::DesiredState> desired_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_);
  v1::CoordinatorMessage outgoing_;
};

grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* AgentSessions::Session(
    grpc::CallbackServerContext*) {
  auto session = std::make_shared<AgentSession>(this);
  session->Begin();
  return session.get();
}

absl::Status AgentSessions::Register(const std::shared_ptr<AgentSession>& session) {
  std::shared_ptr<AgentSession> older;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return absl::UnavailableError("the server is shutting down");
    std::shared_ptr<AgentSession>& slot = sessions_[session->node_id()];
    if (slot != nullptr && slot->number() >= session->number()) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat("node ", session->node_id(), " is connected with session ",
                                                     slot->number(), "; this one has the number ", session->number())),
          "STALE_SESSION");
    }
    older = std::exchange(slot, session);
  }
  if (older != nullptr) older->Close(absl::AbortedError("the node has a newer session"));
  return absl::OkStatus();
}

void AgentSessions::Unregister(const AgentSession* session) {
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(session->node_id());
  if (it != sessions_.end() && it->second.get() == session) sessions_.erase(it);
}

std::shared_ptr<AgentSession> AgentSessions::Find(const std::string& node_id) {
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(node_id);
  return it == sessions_.end() ? nullptr : it->second;
}

void AgentSessions::Publish(const std::string& node_id, const v1::DesiredState& desired) {
  if (const auto session = Find(node_id)) session->SetDesired(desired);
}

void AgentSessions::RenewLeases() {
  std::vector<std::shared_ptr<AgentSession>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) session->RenewLease();
}

absl::Status AgentSessions::SendLogRead(const std::string& node_id, const v1::LogRead& read) {
  const auto session = Find(node_id);
  if (session == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("the agent of node ", node_id, ", which has the logs, is not connected"));
  }
  v1::CoordinatorMessage message;
  *message.mutable_log_read() = read;
  return session->Send(std::move(message));
}

void AgentSessions::SendLogReadCancel(const std::string& node_id, int64_t read_id) {
  const auto session = Find(node_id);
  if (session == nullptr) return;
  v1::CoordinatorMessage message;
  message.mutable_log_read_cancel()->set_read_id(read_id);
  session->Send(std::move(message)).IgnoreError();  // a read that goes on is only a waste
}

void AgentSessions::CloseAll() {
  std::vector<std::shared_ptr<AgentSession>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) session->Close(absl::UnavailableError("the server is shutting down"));
}

}  // namespace slipway::server::rpc
