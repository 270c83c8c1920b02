// Each row of the table of states, one test or more: pausing, paused, recovering, cancelling, final; and restarts of
// the coordinator.
#include "server/core/step.h"

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

using StopTest = testing::JobFixture;

// --- PAUSING

TEST_F(StopTest, PausingPausesWhenAllRanksStopped) {
  StartJob();
  cluster.Do(PauseJob{"a"});
  agent().Commit(cluster.Live("a"), 7);
  cluster.Sync("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(cluster.Job("a").state_message(), "paused at step 7");
  EXPECT_TRUE(cluster.Do(PauseJob{"a"}).status.ok()) << "asks for what is so";
  EXPECT_TRUE(HeldSlots(cluster.state).empty());
}

TEST_F(StopTest, PausingSucceedsAtTheLastStep) {
  StartJob();
  cluster.Do(PauseJob{"a"});
  Complete();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(StopTest, PausingEndsPausedAtTheLastGoodCheckpointAfterAFault) {
  StartJob();
  agent().Commit(cluster.Live("a"), 5);
  cluster.Do(PauseJob{"a"});
  Fault(0, v1::CAUSE_CLASS_STORAGE, "no space left");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSING);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);
  EXPECT_THAT(cluster.Job("a").state_message(), HasSubstr("paused at step 5; a fault ended the attempt"));
}

TEST_F(StopTest, PausingGoesOnRunningWhenItsDeadlineHasPassed) {
  StartJob();
  agent().stops_as_asked = false;
  cluster.Do(PauseJob{"a"});
  cluster.Settle();
  cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
  cluster.Advance(absl::Seconds(600));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Job("a").state_reason(), "PauseTimedOut");
  EXPECT_FALSE(DesiredFor(cluster.state, "n1").assignments(0).stop_requested());
  // The ranks had agreed to stop before they heard of it: that is the pause the user asked for.
  agent().Exit(cluster.Live("a"), 0, v1::RANK_OUTCOME_STOPPED);
  agent().Exit(cluster.Live("a"), 1, v1::RANK_OUTCOME_STOPPED);
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);
}

TEST_F(StopTest, DrainingPutsJobsBackIntoTheQueue) {
  StartJob();
  cluster.Do(Drain{});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSING);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(cluster.Job("a").attempts_size(), 1) << "nothing starts while draining";
}

TEST_F(StopTest, DrainingDoesNotWaitForEver) {
  StartJob();
  agent().stops_as_asked = false;
  cluster.Do(Drain{});
  cluster.Settle();
  cluster.Advance(cluster.state.options.drain_timeout);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
}

// --- PAUSED

TEST_F(StopTest, PausedResumesWithAnotherLayout) {
  StartJob();
  cluster.Do(PauseJob{"a"});
  agent().Commit(cluster.Live("a"), 7);
  cluster.Sync("n1");
  EXPECT_TRUE(cluster.Do(ResumeJob{.id = "a", .spec = TestSpec(1), .changed = true}).status.ok());
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_QUEUED);
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  const v1::Attempt& attempt = cluster.Job("a").attempts(1);
  EXPECT_EQ(attempt.epoch(), 2);
  EXPECT_EQ(attempt.world_size(), 1);
  EXPECT_TRUE(attempt.resumed());
  EXPECT_EQ(attempt.resumed_from_step(), 7);
  ASSERT_EQ(cluster.Job("a").lineage_size(), 2);
  EXPECT_EQ(cluster.Job("a").lineage(1).from_epoch(), 1);
  EXPECT_EQ(cluster.Job("a").lineage(1).from_step(), 7);
}

TEST_F(StopTest, PausedCancels) {
  cluster.Submit("a", TestSpec());
  cluster.Do(PauseJob{"a"});
  cluster.Do(CancelJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
}

TEST_F(StopTest, ResumeWithChangesNeedsAPausedJob) {
  StartJob();
  EXPECT_TRUE(cluster.Do(ResumeJob{.id = "a", .spec = TestSpec(2)}).status.ok());
  EXPECT_THAT(cluster.Do(ResumeJob{.id = "a", .spec = TestSpec(1), .changed = true}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it is RUNNING; pause it first")));
  cluster.Do(PauseJob{"a"});
  EXPECT_THAT(cluster.Do(ResumeJob{.id = "a", .spec = TestSpec(2)}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("PAUSING")));
}

// --- RECOVERING

TEST_F(StopTest, RecoveringStartsAgainOnTheSameSlots) {
  StartJob();
  Progress(10);
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED);
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(cluster.Job("a").attempts_size(), 2);
  EXPECT_EQ(cluster.Job("a").attempts(1).epoch(), 2);
  EXPECT_EQ(cluster.Job("a").attempts(1).placements(1).slot(), cluster.Job("a").attempts(0).placements(1).slot());
  EXPECT_EQ(cluster.Job("a").restarts(), 1);
}

TEST_F(StopTest, RecoveringWaitsInTheQueueWhenItsSlotsAreGone) {
  cluster.Connect("n1", 1);
  cluster.Connect("n2", 1);
  cluster.Submit("a", TestSpec(2));
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  cluster.Disconnect("n2");
  Fault(0, v1::CAUSE_CLASS_PROCESS_KILLED);
  cluster.Sync("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RECOVERING) << "n2 may still run rank 1";
  cluster.agents["n2"].Exit(cluster.Live("a"), 1, v1::RANK_OUTCOME_FAULT, v1::CAUSE_CLASS_NETWORK, "reset by peer");
  cluster.Reconnect("n2");
  cluster.Sync("n2");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
}

TEST_F(StopTest, RecoveringFailsWhenTheBudgetOfItsCauseIsSpent) {
  StartJob();
  for (int restart = 1; restart <= 3; ++restart) {
    Progress(10 * restart);
    Fault(0, v1::CAUSE_CLASS_CRASH, "segfault");
    cluster.Settle();
    ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING) << restart;
  }
  Progress(40);
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED, "signal 9");  // another cause, another budget
  cluster.Settle();
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  Progress(50);
  Fault(0, v1::CAUSE_CLASS_CRASH, "segfault");
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster.Job("a").state_reason(), "RestartBudgetSpent");
  EXPECT_THAT(cluster.Job("a").state_message(), HasSubstr("max_user_error_restarts"));
}

TEST_F(StopTest, RecoveringFailsAtOnceForWhatARestartCannotHelp) {
  for (const v1::CauseClass cause : {v1::CAUSE_CLASS_USER_ERROR, v1::CAUSE_CLASS_NUMERIC, v1::CAUSE_CLASS_DATA}) {
    cluster = TestCluster();
    StartJob();
    Fault(0, cause, "bad");
    cluster.Settle();
    EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_FAILED);
    EXPECT_EQ(cluster.Job("a").failure().cause_class(), cause);
  }
}

TEST_F(StopTest, RecoveringFailsWithoutProgress) {
  StartJob();
  cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
  int restarts = 0;
  while (cluster.State("a") != v1::JOB_STATE_FAILED) {
    ASSERT_LT(++restarts, 20);
    Fault(0, v1::CAUSE_CLASS_PROCESS_KILLED);
    cluster.Settle();
    cluster.state.nodes["n1"].lease_end = absl::InfiniteDuration();
    cluster.Advance(cluster.state.options.max_backoff);
    cluster.Settle();
  }
  EXPECT_EQ(cluster.Job("a").state_reason(), "NoProgress");
  EXPECT_EQ(cluster.Job("a").attempts_size(), 5);
}

TEST_F(StopTest, RecoveringPausesAndCancels) {
  StartJob();
  agent().ends_when_stopped = false;
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED);
  cluster.Do(PauseJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSING);
  agent().ends_when_stopped = true;
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_PAUSED);

  cluster = TestCluster();
  StartJob();
  Fault(1, v1::CAUSE_CLASS_PROCESS_KILLED);
  cluster.Do(CancelJob{"a"});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLING);
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
}

// --- CANCELLING and the final states

TEST_F(StopTest, CancellingWaitsUntilAllWorkersAreGone) {
  StartJob();
  agent().ends_when_stopped = false;
  cluster.Do(CancelJob{"a"});
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLING);
  EXPECT_TRUE(cluster.Do(CancelJob{"a"}).status.ok());
  EXPECT_THAT(cluster.Do(PauseJob{"a"}).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("CANCELLING")));
  agent().ends_when_stopped = true;
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
}

TEST_F(StopTest, CancellingDoesNotNeedAnAgentThatNeverHeardOfTheAttempt) {
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Sync("n1");  // passes the preflight, and the attempt is placed
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_STARTING);
  cluster.Do(CancelJob{"a"});
  agent().Forget();
  cluster.Report("n1");
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLING) << "it may not have read that nothing must run";
  cluster.Do(AgentHeartbeat{"n1", cluster.state.nodes["n1"].desired_revision});
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
}

TEST_F(StopTest, FinalStatesRefuseEveryVerb) {
  StartJob();
  Complete();
  for (const Event& verb :
       {Event(PauseJob{"a"}), Event(ResumeJob{.id = "a"}), Event(CancelJob{"a"}), Event(CheckpointJob{"a"})}) {
    EXPECT_THAT(cluster.Do(verb).status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it is SUCCEEDED")));
  }
  cluster.Settle();
  cluster.Advance(absl::Hours(1));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(StopTest, VerbsNameAnUnknownJobAndAStaleEtag) {
  EXPECT_THAT(cluster.Do(PauseJob{"x"}).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("x")));
  cluster.Submit("a", TestSpec());
  EXPECT_THAT(cluster.Do(PauseJob{"a", "r0"}).status, StatusIs(absl::StatusCode::kAborted, HasSubstr("etag")));
  EXPECT_TRUE(cluster.Do(PauseJob{"a", cluster.Job("a").etag()}).status.ok());
}

// --- a restart of the coordinator

TEST_F(StopTest, ARestartOfTheCoordinatorIsNoticedByNobody) {
  StartJob();
  cluster.Submit("b", TestSpec(2));
  cluster.Submit("c", TestSpec(2));
  cluster.Settle();
  ClusterState restored;
  restored.revision = cluster.state.revision;
  for (const auto& [id, entry] : cluster.state.jobs) {
    JobEntry& copy = restored.jobs[id];
    copy.job = entry.job;
    copy.submit_sequence = entry.submit_sequence;
    copy.next_epoch = entry.next_epoch;
    copy.preflight = entry.preflight;
  }
  cluster.state = restored;
  RestoreAfterRestart(cluster.state, cluster.now);
  cluster.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  cluster.Reconnect("n1");
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Job("a").attempts_size(), 1);
  Complete();
  cluster.Settle();
  EXPECT_EQ(cluster.State("a"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.State("b"), v1::JOB_STATE_RUNNING) << "in the old order";
  EXPECT_EQ(cluster.State("c"), v1::JOB_STATE_QUEUED);
}

}  // namespace
}  // namespace slipway::server::core
