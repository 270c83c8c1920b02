#include "engine/topology/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::topology {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Text(const std::vector<Pass>& passes) {
  return absl::StrJoin(passes, " ", [](std::string* out, const Pass& pass) { out->append(PassText(pass)); });
}

int LeadingForwards(const std::vector<Pass>& passes) {
  const auto first =
      std::find_if(passes.begin(), passes.end(), [](const Pass& pass) { return pass.kind == PassKind::kBackward; });
  return static_cast<int>(first - passes.begin());
}

TEST(PipelineSchedule, OneForwardOneBackwardOfFourRanks) {
  ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, OneForwardOneBackward(4, 5));
  EXPECT_EQ(Text(schedule.ranks[0]), "F0.0 F1.0 F2.0 F3.0 B0.0 F4.0 B1.0 B2.0 B3.0 B4.0");
  EXPECT_EQ(Text(schedule.ranks[3]), "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0 F4.0 B4.0");
}

TEST(PipelineSchedule, InterleavedOfTwoRanks) {
  ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, InterleavedOneForwardOneBackward(2, 2, 4));
  EXPECT_EQ(Text(schedule.ranks[0]), "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(Text(schedule.ranks[1]), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(PipelineSchedule, OneForwardOneBackwardMeetsItsFormulas) {
  for (int pp = 1; pp <= 9; ++pp) {
    for (int m = 1; m <= 20; ++m) {
      ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, OneForwardOneBackward(pp, m));
      ASSERT_OK(CheckSchedule(schedule));
      for (int rank = 0; rank < pp; ++rank) {
        const int warmup = std::min(pp - rank - 1, m);
        ASSERT_EQ(LeadingForwards(schedule.ranks[rank]), std::min(warmup + 1, m));
        ASSERT_EQ(PeakInFlight(schedule, rank), std::min(warmup + 1, m));
        ASSERT_EQ(InFlightBound(schedule, rank), std::min(warmup + 1, m));
      }
      ASSERT_OK_AND_ASSIGN(const SimulationResult result, Simulate(schedule));
      ASSERT_NEAR(result.bubble_fraction, static_cast<double>(pp - 1) / m, 1e-9) << pp << " ranks, " << m;
    }
  }
}

TEST(PipelineSchedule, InterleavedMeetsItsFormulas) {
  for (int pp = 2; pp <= 5; ++pp) {
    for (int vpp = 2; vpp <= 4; ++vpp) {
      for (int groups = 1; groups <= 4; ++groups) {
        const int m = pp * groups;
        ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, InterleavedOneForwardOneBackward(pp, vpp, m));
        ASSERT_OK(CheckSchedule(schedule));
        for (int rank = 0; rank < pp; ++rank) {
          const int warmup = std::min(2 * (pp - rank - 1) + (vpp - 1) * pp, m * vpp);
          ASSERT_EQ(LeadingForwards(schedule.ranks[rank]), std::min(warmup + 1, m * vpp));
          ASSERT_LE(PeakInFlight(schedule, rank), InFlightBound(schedule, rank));
        }
        ASSERT_OK_AND_ASSIGN(const SimulationResult result, Simulate(schedule));
        ASSERT_NEAR(result.bubble_fraction, static_cast<double>(pp - 1) / (vpp * m), 1e-9)
            << pp << " ranks, " << vpp << " chunks, " << m;
      }
    }
  }
}

TEST(PipelineSchedule, InterleavedGroupsOfOtherSizes) {
  for (const auto& [m, group] :
       {std::pair{8, 4}, std::pair{7, 5}, std::pair{9, 6}, std::pair{12, 12}, std::pair{5, 3}}) {
    for (int pp = 2; pp <= 3; ++pp) {
      if (m % group != 0 && m % group < pp) continue;
      ASSERT_OK_AND_ASSIGN(PipelineSchedule schedule, InterleavedOneForwardOneBackward(pp, 3, m, group));
      EXPECT_OK(CheckSchedule(schedule)) << m << " in groups of " << group << " on " << pp;
      if (m > group) {
        schedule.channel_capacity = 1;
        EXPECT_THAT(CheckSchedule(schedule), StatusIs(kInvalid, HasSubstr("deadlocks")));
      }
    }
  }
}

TEST(PipelineSchedule, ForwardOnlyRunsEveryForward) {
  for (const auto& [pp, vpp] : {std::pair{1, 1}, std::pair{4, 1}, std::pair{2, 3}, std::pair{3, 2}, std::pair{5, 4}}) {
    for (int m = 1; m <= 11; ++m) {
      ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, ForwardOnly(pp, vpp, m));
      EXPECT_OK(CheckSchedule(schedule)) << pp << " ranks, " << vpp << " chunks, " << m;
      EXPECT_EQ(static_cast<int>(schedule.ranks[pp - 1].size()), m * vpp);
    }
  }
}

TEST(Simulate, StagesOfUnequalLengthAndMessagesThatTakeTime) {
  ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, OneForwardOneBackward(2, 2));
  // Rank 0: F0 [0,1] F1 [1,2] B0 [12,14] B1 [21,23]; rank 1: F0 [2,5] B0 [5,11] F1 [11,14] B1 [14,20].
  ASSERT_OK_AND_ASSIGN(const SimulationResult result,
                       Simulate(schedule, {.stages = {{1, 2}, {3, 6}}, .message_time = 1}));
  EXPECT_DOUBLE_EQ(result.useful, 12);  // 6 and 18
  EXPECT_DOUBLE_EQ(result.makespan, 23);
  EXPECT_DOUBLE_EQ(result.bubble_fraction, 11.0 / 12);
  EXPECT_THAT(Simulate(schedule, {.stages = {{1, 2}}}), StatusIs(kInvalid, HasSubstr("times of 1 stages")));
}

TEST(PipelineSchedule, Neighbours) {
  ASSERT_OK_AND_ASSIGN(const PipelineSchedule schedule, InterleavedOneForwardOneBackward(2, 2, 2));
  EXPECT_EQ(Upstream(schedule, 0, {PassKind::kForward, 0, 0}), std::nullopt);
  EXPECT_EQ(Upstream(schedule, 0, {PassKind::kForward, 0, 1}), (Peer{1, 0}));
  EXPECT_EQ(Downstream(schedule, 1, {PassKind::kForward, 0, 0}), (Peer{0, 1}));
  EXPECT_EQ(Downstream(schedule, 1, {PassKind::kForward, 0, 1}), std::nullopt);
  EXPECT_EQ(Upstream(schedule, 1, {PassKind::kBackward, 0, 1}), std::nullopt);
  EXPECT_EQ(Upstream(schedule, 1, {PassKind::kBackward, 0, 0}), (Peer{0, 1}));
  EXPECT_EQ(Downstream(schedule, 0, {PassKind::kBackward, 0, 0}), std::nullopt);
}

TEST(PipelineSchedule, RefusesWhatCannotWork) {
  EXPECT_THAT(OneForwardOneBackward(0, 1), StatusIs(kInvalid, HasSubstr("at least 1")));
  EXPECT_THAT(InterleavedOneForwardOneBackward(1, 2, 4), StatusIs(kInvalid, HasSubstr("not 1 and 2")));
  EXPECT_THAT(InterleavedOneForwardOneBackward(4, 2, 3), StatusIs(kInvalid, HasSubstr("group of 4")));
  EXPECT_THAT(InterleavedOneForwardOneBackward(4, 2, 9), StatusIs(kInvalid, HasSubstr("last group of 1 of 9")));
  EXPECT_THAT(InterleavedOneForwardOneBackward(4, 2, 9, 3), StatusIs(kInvalid, HasSubstr("group of 3")));
}

TEST(CheckSchedule, FindsWhatIsBroken) {
  ASSERT_OK_AND_ASSIGN(const PipelineSchedule good, OneForwardOneBackward(2, 3));
  PipelineSchedule bad = good;
  std::swap(bad.ranks[1][0], bad.ranks[1][1]);
  EXPECT_THAT(CheckSchedule(bad), StatusIs(kInvalid, HasSubstr("rank 1, pass B0.0: runs before its forward")));
  bad = good;
  bad.ranks[0].pop_back();
  EXPECT_THAT(CheckSchedule(bad), StatusIs(kInvalid, HasSubstr("5 of 6 backward")));
  bad = good;
  bad.ranks[0][1] = bad.ranks[0][0];
  EXPECT_THAT(CheckSchedule(bad), StatusIs(kInvalid, HasSubstr("F0.0: runs twice")));
  bad = good;
  bad.ranks[1] = {{PassKind::kForward, 1, 0},  {PassKind::kForward, 0, 0},  {PassKind::kForward, 2, 0},
                  {PassKind::kBackward, 0, 0}, {PassKind::kBackward, 1, 0}, {PassKind::kBackward, 2, 0}};
  EXPECT_THAT(CheckSchedule(bad),
              StatusIs(kInvalid, HasSubstr("rank 1, pass F1.0: the next message of rank 0 is for F0.0")));
  bad.ranks.pop_back();
  EXPECT_THAT(CheckSchedule(bad), StatusIs(kInvalid, HasSubstr("1 ranks for a pipeline of 2")));
}

TEST(CheckSchedule, FindsDeadlocks) {
  ASSERT_OK_AND_ASSIGN(PipelineSchedule schedule, OneForwardOneBackward(2, 2));
  // Rank 0 wants its first gradient before it has sent what the last rank waits for.
  schedule.ranks[0] = {
      {PassKind::kForward, 0, 0}, {PassKind::kBackward, 0, 0}, {PassKind::kForward, 1, 0}, {PassKind::kBackward, 1, 0}};
  schedule.ranks[1] = {
      {PassKind::kForward, 0, 0}, {PassKind::kForward, 1, 0}, {PassKind::kBackward, 0, 0}, {PassKind::kBackward, 1, 0}};
  EXPECT_THAT(CheckSchedule(schedule),
              StatusIs(kInvalid, AllOf(HasSubstr("deadlocks"), HasSubstr("rank 0 waits to receive for B0.0"),
                                       HasSubstr("rank 1 waits to receive for F1.0"))));
  // All forwards first on rank 1 of three: with room for one message its sends must still drain.
  ASSERT_OK_AND_ASSIGN(PipelineSchedule good, OneForwardOneBackward(3, 6));
  EXPECT_OK(CheckSchedule(good));
  good.channel_capacity = 0;
  EXPECT_THAT(CheckSchedule(good), StatusIs(kInvalid, HasSubstr("waits to send to rank 1")));
}

}  // namespace
}  // namespace slipway::engine::topology
