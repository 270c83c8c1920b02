#include "server/core/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/core/testing/test_cluster.h"

namespace slipway::server::core {
namespace {

using testing::TestCluster;
using testing::TestSpec;

std::string NodesOf(const std::vector<v1::RankPlacement>& placements) {
  std::string text;
  for (const v1::RankPlacement& placement : placements) text += placement.node_id() + " ";
  return text;
}

TEST(PlacementTest, TakesTheSmallestNodeThatHoldsTheWholeGang) {
  TestCluster cluster;
  cluster.Connect("big", 8);
  cluster.Connect("fit", 2);
  cluster.Connect("tiny", 1);
  EXPECT_EQ(NodesOf(*Place(cluster.state, TestSpec(2), nullptr)), "fit fit ");
  EXPECT_EQ(NodesOf(*Place(cluster.state, TestSpec(3), nullptr)), "big big big ");
}

TEST(PlacementTest, KeepsTensorParallelNeighboursOnOneNode) {
  TestCluster cluster;
  cluster.Connect("a", 3);
  cluster.Connect("b", 3);
  // Two groups of two: a third slot of either node would split a group.
  EXPECT_EQ(NodesOf(*Place(cluster.state, TestSpec(2, 2), nullptr)), "a a b b ");
}

TEST(PlacementTest, SplitsAGroupRatherThanNotRunning) {
  TestCluster cluster;
  cluster.Connect("a", 1);
  cluster.Connect("b", 1);
  EXPECT_EQ(NodesOf(*Place(cluster.state, TestSpec(1, 2), nullptr)), "a b ");
}

TEST(PlacementTest, AllRanksOrNone) {
  TestCluster cluster;
  cluster.Connect("a", 1);
  cluster.Connect("b", 1);
  EXPECT_FALSE(Place(cluster.state, TestSpec(3), nullptr).has_value());
}

TEST(PlacementTest, TakesThePreviousSlotsAgain) {
  TestCluster cluster;
  cluster.Connect("a", 4);
  v1::Attempt previous;
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankPlacement& placement = *previous.add_placements();
    placement.set_rank(rank);
    placement.set_node_id("a");
    placement.set_slot(3 - rank);
  }
  const auto placements = Place(cluster.state, TestSpec(2), &previous);
  EXPECT_EQ((*placements)[0].slot(), 3);
  EXPECT_EQ((*placements)[1].slot(), 2);
}

TEST(PlacementTest, AutoMeansGpusWhereThereAreAny) {
  TestCluster cluster;
  cluster.Connect("cpu", 4);
  EXPECT_EQ(DeviceFor(cluster.state, TestSpec()), v1::DEVICE_KIND_CPU);
  cluster.Connect("gpu", 1, v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(DeviceFor(cluster.state, TestSpec()), v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(NodesOf(*Place(cluster.state, TestSpec(1), nullptr)), "gpu ");
  EXPECT_FALSE(Place(cluster.state, TestSpec(2), nullptr).has_value()) << "never a mixed gang";
  v1::TrainingSpec on_cpu = TestSpec(2);
  on_cpu.mutable_parallelism()->set_device("cpu");
  EXPECT_EQ(NodesOf(*Place(cluster.state, on_cpu, nullptr)), "cpu cpu ");
}

TEST(PlacementTest, ANodeThatHasNotReportedYetTakesNothing) {
  TestCluster cluster;
  cluster.Do(AgentConnected{testing::ScriptedAgent("a", 2).Hello(1)});
  EXPECT_FALSE(Place(cluster.state, TestSpec(1), nullptr).has_value());
}

TEST(PlacementTest, TwoGangsLargerThanHalfRunOneAfterTheOther) {
  TestCluster cluster;
  cluster.Connect("a", 2);
  cluster.Connect("b", 2);
  cluster.Submit("x", TestSpec(3));
  cluster.Submit("y", TestSpec(3));
  cluster.Submit("z", TestSpec(1));
  cluster.Settle();
  EXPECT_EQ(cluster.State("x"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.State("y"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(cluster.State("z"), v1::JOB_STATE_QUEUED)
      << "first come, first served: small jobs do not starve large ones";
  EXPECT_EQ(HeldSlots(cluster.state).size(), 3u);
}

}  // namespace
}  // namespace slipway::server::core
