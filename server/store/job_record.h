// The state machine's jobs ↔ stored records. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_STORE_JOB_RECORD_H_
#define SLIPWAY_SERVER_STORE_JOB_RECORD_H_

#include "absl/status/statusor.h"
#include "server/core/state.h"
#include "slipway/storage/v1/storage.pb.h"

namespace slipway::server::store {

// Of every kind of record; a higher one was written by a newer slipwayd.
inline constexpr int kFormatVersion = 1;

storage::v1::JobRecord ToRecord(const core::JobEntry& entry);

// DataLoss for a record that no version of slipwayd could have written; FailedPrecondition for one of a newer version.
absl::StatusOr<core::JobEntry> FromRecord(const storage::v1::JobRecord& record);

}  // namespace slipway::server::store

#endif  // SLIPWAY_SERVER_STORE_JOB_RECORD_H_
