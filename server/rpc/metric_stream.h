// StreamMetrics: stored records from a step on, then live ones. A slow reader loses the oldest and is told how many.
#ifndef SLIPWAY_SERVER_RPC_METRIC_STREAM_H_
#define SLIPWAY_SERVER_RPC_METRIC_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "server/rpc/coordinator.h"
#include "slipway/v1/cluster_service.pb.h"

namespace slipway::server::rpc {

// Owned by gRPC. `coordinator` outlives the stream. The stream ends when the job has.
grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StartMetricStream(const v1::StreamMetricsRequest& request,
                                                                       Coordinator* coordinator);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_METRIC_STREAM_H_
