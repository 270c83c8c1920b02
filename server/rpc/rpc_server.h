// The gRPC server: all services over one coordinator, health and reflection. Start and Shutdown belong to one thread.
#ifndef SLIPWAY_SERVER_RPC_RPC_SERVER_H_
#define SLIPWAY_SERVER_RPC_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/rpc/agent_sessions.h"
#include "server/rpc/cluster_services.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/job_service.h"
#include "server/rpc/log_router.h"

namespace slipway::server::rpc {

struct RpcServerOptions {
  std::string version;
  SubmitOptions submit;
  AgentSessionOptions agents;
};

class RpcServer {
 public:
  // No pointer is owned; all outlive the server.
  RpcServer(RpcServerOptions options, Coordinator* coordinator, Clock* clock, core::Telemetry* telemetry);
  ~RpcServer();

  // The coordinator's sink; valid as long as the server.
  DesiredSink* sink() { return &agents_; }
  // Binds "host:port" (port 0: any); calls are answered from now on. Unavailable when the address is taken; may then be
  // called again with another one.
  absl::Status Start(const std::string& listen);
  // "127.0.0.1:7670", with the port that was bound.
  const std::string& address() const { return address_; }
  void set_http_address(const std::string& address) { admin_.set_http_address(address); }
  // What health checks hear for the service "readiness"; liveness ("") is serving while the process is.
  void SetReady(bool ready);
  // Streams end with a status, calls may finish until the deadline.
  void Shutdown(absl::Duration deadline);

 private:
  const RpcServerOptions options_;
  Coordinator* const coordinator_;
  core::Telemetry* const telemetry_;
  LogRouter logs_;
  AgentSessions agents_;
  JobServiceImpl jobs_;
  NodeServiceImpl nodes_;
  CheckpointServiceImpl checkpoints_;
  MetricServiceImpl metrics_;
  LogServiceImpl log_service_;
  AdminServiceImpl admin_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_RPC_SERVER_H_
