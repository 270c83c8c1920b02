// RocksDB's errors as ours. Internal to server/store.
#ifndef SLIPWAY_SERVER_STORE_ROCKSDB_STATUS_H_
#define SLIPWAY_SERVER_STORE_ROCKSDB_STATUS_H_

#include <rocksdb/status.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slipway::server::store {

inline absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view context) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(context, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace() || message.find("No space left") != std::string::npos) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

}  // namespace slipway::server::store

#endif  // SLIPWAY_SERVER_STORE_ROCKSDB_STATUS_H_
