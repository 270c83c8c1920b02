#include "common/clock.h"

#include <chrono>

namespace slipway {

absl::Duration RealClock::MonotonicNow() const {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Duration SimClock::MonotonicNow() const {
  absl::MutexLock lock(&mutex_);
  return monotonic_;
}

absl::Time SimClock::WallNow() const {
  absl::MutexLock lock(&mutex_);
  return wall_;
}

void SimClock::Advance(absl::Duration by) {
  absl::MutexLock lock(&mutex_);
  monotonic_ += by;
  wall_ += by;
}

void SimClock::JumpWall(absl::Duration by) {
  absl::MutexLock lock(&mutex_);
  wall_ += by;
}

}  // namespace slipway
