// gRPC's status as an absl::Status whose message says everything that google.rpc's error details carry.
// Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_RPC_STATUS_H_
#define SLIPWAY_CLIENT_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace slipway::client {

// BadRequest becomes one line a field, PreconditionFailure and QuotaFailure one line a violation. The server's own
// summary stays the first line.
absl::Status FromGrpc(const grpc::Status& status);

// When the server wants to be asked again (RetryInfo); zero where it does not say.
absl::Duration RetryDelay(const grpc::Status& status);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_RPC_STATUS_H_
