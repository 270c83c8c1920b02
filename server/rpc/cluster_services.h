// Nodes, checkpoints, metrics, logs and the server itself: thin handlers over the coordinator. Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_CLUSTER_SERVICES_H_
#define SLIPWAY_SERVER_RPC_CLUSTER_SERVICES_H_

#include <string>
#include <utility>

#include "server/rpc/agent_sessions.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/log_router.h"
#include "slipway/v1/cluster_service.grpc.pb.h"

namespace slipway::server::rpc {

// No pointer below is owned; all outlive the server.
class NodeServiceImpl final : public v1::NodeService::CallbackService {
 public:
  explicit NodeServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context, const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override;

 private:
  Coordinator* const coordinator_;
};

class CheckpointServiceImpl final : public v1::CheckpointService::CallbackService {
 public:
  explicit CheckpointServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override;

 private:
  Coordinator* const coordinator_;
};

class MetricServiceImpl final : public v1::MetricService::CallbackService {
 public:
  explicit MetricServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}
  grpc::ServerUnaryReactor* QueryMetrics(grpc::CallbackServerContext* context, const v1::QueryMetricsRequest* request,
                                         v1::QueryMetricsResponse* response) override;
  grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StreamMetrics(grpc::CallbackServerContext* context,
                                                                     const v1::StreamMetricsRequest* request) override;

 private:
  Coordinator* const coordinator_;
};

class LogServiceImpl final : public v1::LogService::CallbackService {
 public:
  LogServiceImpl(Coordinator* coordinator, AgentSessions* agents, LogRouter* router)
      : coordinator_(coordinator), agents_(agents), router_(router) {}
  grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamLogs(grpc::CallbackServerContext* context,
                                                               const v1::StreamLogsRequest* request) override;

 private:
  Coordinator* const coordinator_;
  AgentSessions* const agents_;
  LogRouter* const router_;
};

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  AdminServiceImpl(Coordinator* coordinator, std::string version)
      : coordinator_(coordinator), version_(std::move(version)) {}
  // Before the server takes calls.
  void set_http_address(std::string address) { http_address_ = std::move(address); }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  Coordinator* const coordinator_;
  const std::string version_;
  std::string http_address_;
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_CLUSTER_SERVICES_H_
