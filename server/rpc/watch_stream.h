// WatchJobs: a snapshot, then events in the order of revisions, then bookmarks. The stream holds a cursor and one small
// batch; what it has not read yet stays with the coordinator, so a slow reader costs nothing and misses nothing (until
// what it has not read is compacted: OUT_OF_RANGE).
#ifndef SLIPWAY_SERVER_RPC_WATCH_STREAM_H_
#define SLIPWAY_SERVER_RPC_WATCH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "server/rpc/coordinator.h"
#include "slipway/v1/job_service.pb.h"

namespace slipway::server::rpc {

// Owned by gRPC. `coordinator` outlives the stream.
grpc::ServerWriteReactor<v1::WatchJobsResponse>* StartWatch(const v1::WatchJobsRequest& request,
                                                            Coordinator* coordinator);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_WATCH_STREAM_H_
