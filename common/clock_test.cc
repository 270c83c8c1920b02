#include "common/clock.h"

#include <gtest/gtest.h>

namespace slipway {
namespace {

TEST(SimClockTest, AdvanceMovesBothAndJumpMovesTheCalendarAlone) {
  SimClock clock(absl::FromUnixSeconds(1000));
  const absl::Duration start = clock.MonotonicNow();
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.MonotonicNow() - start, absl::Seconds(5));
  EXPECT_EQ(clock.WallNow(), absl::FromUnixSeconds(1005));
  clock.JumpWall(-absl::Hours(1));
  EXPECT_EQ(clock.MonotonicNow() - start, absl::Seconds(5));
  EXPECT_EQ(clock.WallNow(), absl::FromUnixSeconds(1005 - 3600));
}

TEST(RealClockTest, MonotonicTimePassesWithTheCalendar) {
  RealClock clock;
  const absl::Duration start = clock.MonotonicNow();
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_GE(clock.MonotonicNow() - start, absl::Milliseconds(5));
  EXPECT_LT(absl::AbsDuration(clock.WallNow() - absl::Now()), absl::Seconds(30));
}

}  // namespace
}  // namespace slipway
