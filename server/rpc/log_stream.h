// StreamLogs: asks the agents that have them for the logs of a job's ranks and passes the chunks on. Whatever happens
// to this stream never touches the job.
#ifndef SLIPWAY_SERVER_RPC_LOG_STREAM_H_
#define SLIPWAY_SERVER_RPC_LOG_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "server/rpc/agent_sessions.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/log_router.h"
#include "slipway/v1/cluster_service.pb.h"

namespace slipway::server::rpc {

// Owned by gRPC. The pointers outlive the stream.
grpc::ServerWriteReactor<v1::StreamLogsResponse>* StartLogStream(const v1::StreamLogsRequest& request,
                                                                 Coordinator* coordinator, AgentSessions* agents,
                                                                 LogRouter* router);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_LOG_STREAM_H_
