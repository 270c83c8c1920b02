// Each row of the table of states, one test or more: queued, starting, running. The others are in stop_test.cc.
#include "server/core/step.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/describe.h"
#include "server/core/placement.h"
#include "server/core/testing/job_fixture.h"
#include "tests/support/status_matchers.h"

namespace slipway::server::core {
namespace {

using slipway::testing::StatusIs;
using ::testing::HasSubstr;
using testing::ScriptedAgent;
using testing::TestCluster;
using testing::TestSpec;

using StepTest = testing::JobFixture;

// --- QUEUED

TEST_F(StepTest, QueuedFailsWithAllFaultsOfThePreflight) {
  cluster.Connect("n1", 2).passes_preflight = false;
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Describe(cluster.state, cluster.state.jobs.at("a"), cluster.now, true).state_message(),
              HasSubstr("checked on node n1"));
  v1::PreflightResult& result = *agent().Assignment({"a", 1}).mutable_preflight();
  result.add_faults()->set_message("no such directory");
  result.mutable_faults(0)->set_path("model.hf_path");
  result.add_faults()->set_message("line 3 is no JSON");
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster.Job("a").failure().cause_class(), v1::CAUSE_CLASS_USER_ERROR);
  EXPECT_EQ(cluster.Job("a").failure().message(), "model.hf_path: no such directory\nline 3 is no JSON");
  EXPECT_EQ(cluster.Job("a").attempts_size(), 0) << "no slot was ever taken";
}

TEST_F(StepTest, QueuedStartsWhenTheGangIsReserved) {
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(cluster.Job("a").attempts(0).epoch(), 1);
  EXPECT_EQ(cluster.Job("a").attempts(0).placements_size(), 2);
}

TEST_F(StepTest, QueuedWaitsWithAReasonWhileSlotsAreHeld) {
  StartJob();
  cluster.Submit("b", TestSpec(2));
  cluster.Settle();
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Describe(cluster.state, cluster.state.jobs.at("b"), cluster.now, true).state_message(),
            "waiting for 2 CPU slots: 0 of 2 free, held by a (2)");
}

TEST_F(StepTest, QueuedSaysWhenNoAgentIsThereAndWhenItCanNeverFit) {
  cluster.Submit("a", TestSpec(4));
  EXPECT_EQ(Describe(cluster.state, cluster.state.jobs.at("a"), cluster.now, true).state_message(),
            "no agent is connected");
  cluster.Connect("n1", 2);
  cluster.Settle();
  EXPECT_EQ(Describe(cluster.state, cluster.state.jobs.at("a"), cluster.now, true).state_message(),
            "needs 4 CPU slots; the nodes have 2 in all");
  cluster.Submit("b", TestSpec(1));
  cluster.Settle();
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_RUNNING) << "a job that cannot run holds nobody up";
}

TEST_F(StepTest, QueuedPausesAndIsNotDispatched) {
  cluster.Submit("a", TestSpec(2));
  EXPECT_TRUE(cluster.Do(PauseJob{"a"}).status.ok());
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);
  cluster.Connect("n1", 2);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);
}

TEST_F(StepTest, QueuedCancelsAndNeverStartsWhileTheOtherGoesOn) {
  StartJob();
  cluster.Submit("b", TestSpec(2));
  cluster.Settle();
  EXPECT_TRUE(cluster.Do(CancelJob{"b"}).status.ok());
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  Complete();
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Job("b").attempts_size(), 0);
}

TEST_F(StepTest, PreflightWithoutAnAnswerIsTriedAgainAndThenFailsTheJob) {
  cluster.Connect("n1", 2).passes_preflight = false;
  cluster.Submit("a", TestSpec(2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
    cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
    cluster.Advance(cluster.state.options.preflight_timeout);
  }
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster.Job("a").failure().cause_class(), v1::CAUSE_CLASS_HANG);
}

TEST_F(StepTest, PreflightMovesWhenItsNodeGoes) {
  cluster.Connect("n1", 2).passes_preflight = false;
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");
  cluster.Disconnect("n1");
  cluster.Connect("n2", 2);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Job("a").attempts(0).placements(0).node_id(), "n2");
}

// --- STARTING

TEST_F(StepTest, StartingRunsWhenAllRanksAreReadyAtTheSamePlace) {
  StartJob();
  EXPECT_TRUE(cluster.Job("a").attempts(0).has_ready_time());
  ASSERT_EQ(cluster.Job("a").lineage_size(), 1);
  EXPECT_EQ(cluster.Job("a").lineage(0).from_epoch(), 0);
}

TEST_F(StepTest, StartingIsAFaultWhenRanksDisagree) {
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");
  agent().gets_ready = true;
  agent().Apply(DesiredFor(cluster.state, "n1"));
  agent().Rank(cluster.Live("a"), 1)->set_spec_hash("other");
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(cluster.Job("a").attempts(0).end_cause().message(), HasSubstr("the ranks disagree"));
}

TEST_F(StepTest, StartingRecoversAfterALostRank) {
  cluster.Connect("n1", 2).gets_ready = false;
  cluster.Submit("a", TestSpec(2));
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
}

TEST_F(StepTest, StartingRecoversWhenItsDeadlineHasPassed) {
  cluster.Connect("n1", 2).gets_ready = false;
  cluster.Submit("a", TestSpec(2));
  cluster.Settle();
  cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
  cluster.Advance(absl::Seconds(599));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
  cluster.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(cluster.Job("a").state_message(), HasSubstr("rank 0, rank 1"));
}

TEST_F(StepTest, StartingPausesAndCancels) {
  cluster.Connect("n1", 2).gets_ready = false;
  cluster.Submit("a", TestSpec(2));
  cluster.Settle();
  cluster.Do(PauseJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSING);
  cluster.Do(CancelJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLING);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
}

TEST_F(StepTest, StartingRunsWhenItsOwnFirstCheckpointsComeWithTheNewsThatItIsReady) {
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");
  agent().Apply(DesiredFor(cluster.state, "n1"));
  agent().Commit(cluster.Live("a"), 2);  // steps shorter than the time between two reports
  agent().Commit(cluster.Live("a"), 4);
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING) << cluster.Job("a").state_message();
  EXPECT_FALSE(cluster.Job("a").attempts(0).has_end_cause());
  EXPECT_EQ(cluster.Job("a").checkpoints_size(), 2);
}

TEST_F(StepTest, StartingFromTheBeginningDespiteADurableCheckpointIsAFault) {
  StartJob();
  agent().Commit(cluster.Live("a"), 7);
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED);
  cluster.disk->clear();  // somebody removed it
  cluster.Sync("n1");
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
  cluster.Sync("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(cluster.Job("a").attempts(1).end_cause().cause_class(), v1::CAUSE_CLASS_STORAGE);
  EXPECT_THAT(cluster.Job("a").state_message(), HasSubstr("checkpoint of step 7"));
  agent().Commit(cluster.Live("a"), 3);  // it saved before it was gone
  cluster.Settle();
  EXPECT_EQ(cluster.Job("a").checkpoints_size(), 1);
  EXPECT_EQ(cluster.Job("a").lineage_size(), 1);
}

// --- RUNNING

TEST_F(StepTest, RunningSucceedsWhenAllRanksCompleted) {
  StartJob();
  agent().Exit(cluster.Live("a"), 0, v1::RANK_OUTCOME_COMPLETED);
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING) << "one rank still lives";
  Complete();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(cluster.Job("a").attempts(0).has_end_time());
  cluster.Sync("n1");
  EXPECT_FALSE(agent().Knows({"a", 1})) << "released";
}

TEST_F(StepTest, RunningSucceedsWhenARankDoesNotLeave) {
  StartJob();
  agent().Exit(cluster.Live("a"), 0, v1::RANK_OUTCOME_COMPLETED);
  cluster.Report("n1");
  cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
  cluster.Advance(cluster.state.options.exit_timeout);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(StepTest, RunningRecoversAfterAPrimaryFault) {
  StartJob();
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED, "signal 9");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(DesiredFor(cluster.state, "n1").assignments(0).phase(), v1::DESIRED_PHASE_STOPPED);
  EXPECT_EQ(cluster.Job("a").attempts_size(), 1) << "no new attempt while rank 0 may live";
}

TEST_F(StepTest, TheFirstPrimaryCauseIsKept) {
  StartJob();
  Fault(0, v1::CAUSE_CLASS_NETWORK, "Connection closed by peer", true);
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING);
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED, "signal 9");
  const v1::Attempt& attempt = cluster.Job("a").attempts(0);
  EXPECT_EQ(attempt.end_cause().cause_class(), v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_EQ(attempt.end_cause().rank(), 1);
  ASSERT_EQ(attempt.secondary_causes_size(), 1);
  EXPECT_EQ(attempt.secondary_causes(0).rank(), 0);
}

TEST_F(StepTest, ALaterPrimaryFaultDoesNotReplaceTheFirst) {
  StartJob();
  Fault(0, v1::CAUSE_CLASS_OOM, "out of memory");
  Fault(1, v1::CAUSE_CLASS_CRASH, "segfault");
  EXPECT_EQ(cluster.Job("a").attempts(0).end_cause().cause_class(), v1::CAUSE_CLASS_OOM);
}

TEST_F(StepTest, RunningPausesAndTakesCheckpointRequests) {
  StartJob();
  const Effects effects = cluster.Do(CheckpointJob{"a"});
  EXPECT_EQ(effects.checkpoint_request, 1);
  EXPECT_EQ(DesiredFor(cluster.state, "n1").assignments(0).checkpoint_requests(), 1);
  cluster.Do(PauseJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSING);
  EXPECT_TRUE(DesiredFor(cluster.state, "n1").assignments(0).stop_requested());
}

TEST_F(StepTest, AnOutageShorterThanTheLeaseGoesUnnoticed) {
  StartJob();
  cluster.Disconnect("n1");
  cluster.Advance(absl::Minutes(4));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  cluster.Reconnect("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Job("a").attempts_size(), 1);
}

TEST_F(StepTest, AnExpiredLeaseFreesTheJobForSpareSlots) {
  StartJob();
  cluster.Connect("n2", 2);
  cluster.Disconnect("n1");
  cluster.Do(AgentHeartbeat{"n2", 0});
  cluster.Advance(absl::Minutes(5));
  cluster.state.nodes["n2"].lease_end = absl::InfiniteDuration();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  cluster.Advance(cluster.state.options.lease_margin);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(cluster.Job("a").attempts_size(), 2);
  EXPECT_EQ(cluster.Job("a").attempts(0).end_cause().cause_class(), v1::CAUSE_CLASS_NODE_LOST);
  EXPECT_EQ(cluster.Job("a").attempts(1).placements(0).node_id(), "n2");
  // The lost node comes back with the old epoch: nothing there is wanted, and its slots are not used before it is gone.
  cluster.Reconnect("n1");
  EXPECT_EQ(DesiredFor(cluster.state, "n1").assignments_size(), 0);
  cluster.Submit("b", TestSpec(2));
  cluster.agents["n2"].Apply(DesiredFor(cluster.state, "n2"));
  cluster.Report("n2");
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_QUEUED);
  cluster.Settle();
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_RUNNING);
}

TEST_F(StepTest, ANodeThatForgotARunningAttemptLostIt) {
  StartJob();
  agent().Forget();
  cluster.Reconnect("n1");
  EXPECT_EQ(cluster.Job("a").attempts(0).end_cause().cause_class(), v1::CAUSE_CLASS_NODE_LOST);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Job("a").attempts_size(), 2);
}

TEST_F(StepTest, AJobWithoutADurableLastStepDoesNotSucceed) {
  StartJob();
  agent().saves_last_step = false;
  Complete();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING) << "again";
  const v1::Cause& cause = cluster.Job("a").attempts(0).end_cause();
  EXPECT_EQ(cause.cause_class(), v1::CAUSE_CLASS_STORAGE);
  EXPECT_THAT(cause.message(), HasSubstr("no durable checkpoint of step 100"));
  // The next attempt finds it on the disk and says so.
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  agent().saves_last_step = true;
  Complete();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(StepTest, ASaveThatFailedIsOneEventAndAConditionUntilOneWorks) {
  StartJob();
  v1::Cause cause;
  cause.set_cause_class(v1::CAUSE_CLASS_STORAGE);
  cause.set_step(20);
  cause.set_message("/ckpt/step-00000020-e1: No space left on device");
  const auto events = [&] {
    return std::count_if(cluster.events.begin(), cluster.events.end(), [](const v1::JobEvent& event) {
      return event.type() == "CheckpointFailed" && event.cause().cause_class() == v1::CAUSE_CLASS_STORAGE;
    });
  };
  *agent().Assignment(cluster.Live("a")).mutable_failed_save() = cause;
  cluster.Report("n1");
  cluster.Report("n1");
  EXPECT_EQ(events(), 1);
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  const auto saving = [&] {
    for (const v1::JobCondition& condition : cluster.Job("a").conditions()) {
      if (condition.type() == "Saving") return condition;
    }
    return v1::JobCondition();
  };
  EXPECT_EQ(saving().reason(), "SaveFailed");
  EXPECT_THAT(saving().message(), HasSubstr("step-00000020-e1: No space left on device"));
  cause.set_step(25);
  *agent().Assignment(cluster.Live("a")).mutable_failed_save() = cause;
  cluster.Report("n1");
  EXPECT_EQ(events(), 2);
  agent().Commit(cluster.Live("a"), 30);
  cluster.Report("n1");
  EXPECT_TRUE(saving().status());
  EXPECT_EQ(events(), 2);
}

TEST_F(StepTest, AHeldJobKeepsItsPlaceAndStartsWhenItIsReleased) {
  cluster.Submit("a", TestSpec(2));
  cluster.Submit("b", TestSpec(2));
  EXPECT_OK(cluster.Do(HoldJob{"a", ""}).status);
  const int64_t revision = cluster.Job("a").revision();
  EXPECT_OK(cluster.Do(HoldJob{"a", ""}).status) << "held already";
  EXPECT_EQ(cluster.Job("a").revision(), revision);
  cluster.Connect("n1", 2);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_RUNNING) << "it holds nobody up";
  EXPECT_EQ(Describe(cluster.state, cluster.state.jobs.at("a"), cluster.now, true).state_reason(), "Held");
  EXPECT_THAT(cluster.Do(HoldJob{"b", ""}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only a queued job")));
  cluster.Submit("c", TestSpec(2));
  EXPECT_OK(cluster.Do(ReleaseJob{"a", ""}).status);
  EXPECT_OK(cluster.Do(ReleaseJob{"b", ""}).status) << "not held";
  cluster.Settle();
  EXPECT_OK(cluster.Do(CancelJob{"b", ""}).status);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING) << "before c, which came later";
  EXPECT_EQ(cluster.State("c"), v1::JOB_STATE_QUEUED);
  EXPECT_OK(cluster.Do(CancelJob{"c", ""}).status);
  EXPECT_THAT(cluster.Do(ReleaseJob{"c", ""}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it is CANCELLED")));
}

}  // namespace
}  // namespace slipway::server::core
