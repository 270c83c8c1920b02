#include "engine/arch/gather_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Action = GatherWindow::Action;

constexpr Action Gather(int bucket) { return {Action::Kind::kGather, bucket}; }
constexpr Action LetGo(int bucket) { return {Action::Kind::kLetGo, bucket}; }

// Uses buckets one after another; the actions of each use.
std::vector<std::vector<Action>> Use(GatherWindow& window, const std::vector<int>& buckets) {
  std::vector<std::vector<Action>> actions;
  for (int bucket : buckets) {
    auto done = window.Acquire(bucket);
    EXPECT_OK(done);
    actions.push_back(*done);
    window.Release(bucket);
  }
  return actions;
}

int Gathers(const std::vector<std::vector<Action>>& actions) {
  int count = 0;
  for (const auto& list : actions) {
    for (const Action& action : list) count += action.kind == Action::Kind::kGather;
  }
  return count;
}

// A step of two micro-batches over four buckets, last one first.
const std::vector<int> kMicroBatch = {3, 2, 2, 1, 0, 0, 1, 1, 2, 3};

TEST(GatherWindow, FirstGathersWhatIsUsedAndThenWhatFollowed) {
  GatherWindow window(/*ahead=*/true);
  EXPECT_THAT(Use(window, kMicroBatch),
              ElementsAre(ElementsAre(Gather(3)), ElementsAre(Gather(2)), IsEmpty(), ElementsAre(LetGo(3), Gather(1)),
                          ElementsAre(LetGo(2), Gather(0)), IsEmpty(), IsEmpty(), IsEmpty(),
                          ElementsAre(LetGo(0), Gather(2)), ElementsAre(LetGo(1), Gather(3))));
  Use(window, kMicroBatch);
  window.Clear();
  // Now each use finds its bucket gathered or under way, and asks for the one that will follow.
  EXPECT_THAT(Use(window, kMicroBatch),
              ElementsAre(ElementsAre(Gather(3), Gather(2)), ElementsAre(LetGo(3), Gather(1)), IsEmpty(),
                          ElementsAre(LetGo(2), Gather(0)), IsEmpty(), IsEmpty(), ElementsAre(LetGo(0), Gather(2)),
                          IsEmpty(), ElementsAre(LetGo(1), Gather(3)), IsEmpty()));
}

TEST(GatherWindow, AGuessCostsNoGatherWhereTheOrderRepeats) {
  GatherWindow ahead(true), behind(false);
  for (int step = 0; step < 4; ++step) {
    const int with = Gathers(Use(ahead, kMicroBatch)), without = Gathers(Use(behind, kMicroBatch));
    EXPECT_EQ(with, without) << step;
    ahead.Clear();
    behind.Clear();
  }
}

TEST(GatherWindow, NeverHoldsMoreThanTwo) {
  GatherWindow window(true);
  std::set<int> whole;
  uint32_t random = 1;
  for (int use = 0; use < 5000; ++use) {
    random = random * 1664525u + 1013904223u;
    const int bucket = static_cast<int>(random >> 24) % 7;
    ASSERT_OK_AND_ASSIGN(const std::vector<Action> actions, window.Acquire(bucket));
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::kGather) {
        EXPECT_TRUE(whole.insert(action.bucket).second);
      } else {
        EXPECT_EQ(whole.erase(action.bucket), 1u);
        EXPECT_NE(action.bucket, bucket);
      }
      EXPECT_LE(whole.size(), 2u);
    }
    EXPECT_TRUE(whole.contains(bucket));
    window.Release(bucket);
  }
}

TEST(GatherWindow, WhatIsHeldStays) {
  GatherWindow window(false);
  ASSERT_OK(window.Acquire(0).status());
  ASSERT_OK(window.Acquire(1).status());
  EXPECT_THAT(window.Acquire(2).status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("bucket 2")));
  window.Release(1);
  ASSERT_OK_AND_ASSIGN(const std::vector<Action> actions, window.Acquire(2));
  EXPECT_THAT(actions, ElementsAre(LetGo(1), Gather(2)));
  EXPECT_THAT(window.Clear(), ElementsAre(LetGo(0), LetGo(2)));
}

}  // namespace
}  // namespace slipway::engine::arch
