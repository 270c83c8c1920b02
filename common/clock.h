// Time as an argument, so that leases, deadlines and retries can be tested without waiting. Monotonic time decides;
// wall time is only shown and stored. Every clock here is thread-safe.
#ifndef SLIPWAY_COMMON_CLOCK_H_
#define SLIPWAY_COMMON_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace slipway {

class Clock {
 public:
  virtual ~Clock() = default;
  // Time since an arbitrary start; never goes back, and means nothing outside this process and machine.
  virtual absl::Duration MonotonicNow() const = 0;
  // The calendar; may jump in both directions.
  virtual absl::Time WallNow() const = 0;
};

class RealClock final : public Clock {
 public:
  absl::Duration MonotonicNow() const override;
  absl::Time WallNow() const override { return absl::Now(); }
};

// Stands still until told otherwise.
class SimClock final : public Clock {
 public:
  explicit SimClock(absl::Time wall = absl::FromUnixSeconds(1'700'000'000)) : wall_(wall) {}
  absl::Duration MonotonicNow() const override;
  absl::Time WallNow() const override;
  // Both clocks go forward; `by` must not be negative.
  void Advance(absl::Duration by);
  // Somebody set the machine's calendar: monotonic time is untouched.
  void JumpWall(absl::Duration by);

 private:
  mutable absl::Mutex mutex_;
  absl::Duration monotonic_ ABSL_GUARDED_BY(mutex_) = absl::Hours(1);
  absl::Time wall_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway

#endif  // SLIPWAY_COMMON_CLOCK_H_
