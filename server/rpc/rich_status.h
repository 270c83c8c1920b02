// absl::Status ↔ gRPC's status with google.rpc details (ErrorInfo always, domain "slipway.dev"). Details travel inside
// an absl::Status as payloads. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_RPC_RICH_STATUS_H_
#define SLIPWAY_SERVER_RPC_RICH_STATUS_H_

#include <grpcpp/support/status.h>

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/spec/spec_fault.h"

namespace slipway::server::rpc {

inline constexpr char kErrorDomain[] = "slipway.dev";

// `reason` in UPPER_SNAKE_CASE, as ErrorInfo has it.
absl::Status WithReason(absl::Status status, const std::string& reason,
                        const std::map<std::string, std::string>& metadata = {});
// Tells the client when to try again.
absl::Status WithRetry(absl::Status status, absl::Duration delay);
// InvalidArgument with one field violation a fault; `prefix` goes before each path ("spec.").
absl::Status FaultsStatus(const engine::spec::SpecFaults& faults, const std::string& prefix);
// FailedPrecondition becomes one with a PreconditionFailure that names the job.
absl::Status WithPrecondition(absl::Status status, const std::string& subject);

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_RICH_STATUS_H_
