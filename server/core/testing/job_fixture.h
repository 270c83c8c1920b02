// A cluster with one job of two ranks on one node, for tests of single transitions.
#ifndef SLIPWAY_SERVER_CORE_TESTING_JOB_FIXTURE_H_
#define SLIPWAY_SERVER_CORE_TESTING_JOB_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "server/core/testing/test_cluster.h"

namespace slipway::server::core::testing {

class JobFixture : public ::testing::Test {
 protected:
  // One job of two ranks, ready on one node.
  void StartJob() {
    cluster.Connect("n1", 2);
    cluster.Submit("a", TestSpec(2));
    cluster.Settle();
    ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  }
  ScriptedAgent& agent() { return cluster.agents["n1"]; }
  void Fault(int rank, v1::CauseClass cause, const std::string& message = "boom", bool secondary = false) {
    agent().Exit(cluster.Live("a"), rank, v1::RANK_OUTCOME_FAULT, cause, message, secondary);
    cluster.Report("n1");
  }
  void Complete() {
    agent().Exit(cluster.Live("a"), 0, v1::RANK_OUTCOME_COMPLETED);
    agent().Exit(cluster.Live("a"), 1, v1::RANK_OUTCOME_COMPLETED);
    cluster.Report("n1");
  }
  void Progress(int64_t step) {
    for (int rank = 0; rank < 2; ++rank) {
      if (v1::ObservedRank* observed = agent().Rank(cluster.Live("a"), rank)) observed->set_step(step);
    }
    cluster.Report("n1");
  }

  TestCluster cluster;
};

}  // namespace slipway::server::core::testing

#endif  // SLIPWAY_SERVER_CORE_TESTING_JOB_FIXTURE_H_
