// absl::Time as protobuf's Timestamp. Thread-safe.
#ifndef SLIPWAY_ENGINE_TRAIN_WALL_TIME_H_
#define SLIPWAY_ENGINE_TRAIN_WALL_TIME_H_

#include <google/protobuf/timestamp.pb.h>

#include "absl/time/time.h"

namespace slipway::engine::train {

inline void SetTime(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t nanos = absl::ToUnixNanos(time);
  out->set_seconds(nanos / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_WALL_TIME_H_
