// absl::Time ↔ protobuf's Timestamp. A header alone: whoever includes it links protobuf anyway. Thread-safe: pure
// functions.
#ifndef SLIPWAY_COMMON_TIMESTAMP_H_
#define SLIPWAY_COMMON_TIMESTAMP_H_

#include <google/protobuf/timestamp.pb.h>

#include "absl/time/time.h"

namespace slipway {

inline google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const int64_t nanos = absl::ToUnixNanos(time);
  timestamp.set_seconds(nanos / 1'000'000'000);
  timestamp.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return timestamp;
}

inline absl::Time FromTimestamp(const google::protobuf::Timestamp& timestamp) {
  return absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
}

}  // namespace slipway

#endif  // SLIPWAY_COMMON_TIMESTAMP_H_
