// AgentService: one Session stream a node. What agents say becomes the coordinator's events; the newest desired state
// goes down, older ones that were not sent yet are skipped (each is complete). Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_AGENT_SESSIONS_H_
#define SLIPWAY_SERVER_RPC_AGENT_SESSIONS_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/log_router.h"
#include "slipway/v1/agent_service.grpc.pb.h"

namespace slipway::server::rpc {

class AgentSession;

struct AgentSessionOptions {
  absl::Duration agent_lease = absl::Minutes(5);
  absl::Duration worker_lease = absl::Minutes(2);
  absl::Duration heartbeat = absl::Seconds(1);
  // An agent that is silent for longer gets no renewals: its lease must be able to run out.
  absl::Duration silence = absl::Seconds(15);
};

class AgentSessions final : public v1::AgentService::CallbackService, public DesiredSink {
 public:
  // None of the pointers is owned; all outlive this.
  AgentSessions(AgentSessionOptions options, Coordinator* coordinator, LogRouter* logs, Clock* clock)
      : options_(options), coordinator_(coordinator), logs_(logs), clock_(clock) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext* context) override;

  void Publish(const std::string& node_id, const v1::DesiredState& desired) override;
  void RenewLeases() override;
  // Unavailable when the node's agent is not connected.
  absl::Status SendLogRead(const std::string& node_id, const v1::LogRead& read);
  void SendLogReadCancel(const std::string& node_id, int64_t read_id);
  void CloseAll();

 private:
  friend class AgentSession;
  // FailedPrecondition for a session that is older than the node's present one.
  absl::Status Register(const std::shared_ptr<AgentSession>& session);
  void Unregister(const AgentSession* session);
  std::shared_ptr<AgentSession> Find(const std::string& node_id);

  const AgentSessionOptions options_;
  Coordinator* const coordinator_;
  LogRouter* const logs_;
  Clock* const clock_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<AgentSession>> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_AGENT_SESSIONS_H_
