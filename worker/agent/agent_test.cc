// Desired state to processes: starting, stopping, faults, leases, the agent's own death.
#include "worker/agent/agent.h"

#include <sys/stat.h>

#include "tests/support/agent_fixture.h"

namespace slipway::worker::agent {
namespace {

TEST_F(AgentTest, TwoRanksRunToTheirEnd) {
  coordinator_.SetDesired({Job(2)});
  StartAgent({"--threads-per-slot", "3"});
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  for (const ObservedRank& rank : ranks) {
    EXPECT_EQ(rank.outcome(), slipway::v1::RANK_OUTCOME_COMPLETED);
    EXPECT_EQ(rank.step(), 20);
    EXPECT_EQ(rank.spec_hash(), "fake-hash");
  }
  const auto observed = coordinator_.AwaitObserved([](const ObservedState&) { return true; });
  ASSERT_TRUE(observed.has_value());
  ASSERT_EQ(Find(*observed)->committed_checkpoints_size(), 1);
  EXPECT_EQ(Find(*observed)->committed_checkpoints(0).step(), 20);
  EXPECT_THAT(Find(*observed)->rendezvous_address(), HasSubstr("127.0.0.1:"));
  EXPECT_TRUE(Eventually([&] { return coordinator_.MetricSteps().size() == 20; }));

  const auto hello = coordinator_.LastHello();
  ASSERT_EQ(hello->slots_size(), 2);
  EXPECT_EQ(hello->slots(1).threads(), 3);
  EXPECT_EQ(hello->allowed_roots(0), directory_);

  ASSERT_OK_AND_ASSIGN(const auto launch, link::ReadLaunch(files_, RankDir(1) + "/launch"));
  EXPECT_EQ(launch.rendezvous_address(), Find(*observed)->rendezvous_address());
  EXPECT_FALSE(launch.has_rendezvous_fd());
  EXPECT_EQ(launch.threads(), 3);
  EXPECT_EQ(launch.device(), "cpu");

  coordinator_.SetDesired({});  // released: records go, logs stay
  EXPECT_TRUE(coordinator_.AwaitObserved([&](const ObservedState& o) { return o.assignments().empty(); }).has_value());
  EXPECT_FALSE(files_.Exists(directory_ + "/state/attempts/job-1/e1").value_or(true));
  EXPECT_TRUE(coordinator_.ReadLog(LogOf(0)).end);
}

TEST_F(AgentTest, AKilledRankEndsTheOthersAndIsThePrimaryCause) {
  const std::string work = "phase step;ready 0;step 5;collective dp all_reduce 77;hang";
  coordinator_.SetDesired({Job(2, {{"FAKE_WORKER", work}})});
  StartAgent();
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  ASSERT_OK(SignalProcess(Shim(1).worker, SIGKILL));
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[1].cause().cause_class(), slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_FALSE(ranks[1].cause().secondary());
  EXPECT_EQ(ranks[1].cause().signal(), 9);
  EXPECT_EQ(ranks[1].cause().step(), 5);
  EXPECT_EQ(ranks[1].cause().phase(), "step");
  EXPECT_THAT(ranks[1].cause().collective(), HasSubstr("dp all_reduce #77"));
  EXPECT_EQ(ranks[1].cause().rank(), 1);
  EXPECT_EQ(ranks[1].cause().node_id(), coordinator_.LastHello()->node_id());
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_FAULT);
  EXPECT_EQ(ranks[0].cause().cause_class(), slipway::v1::CAUSE_CLASS_OPERATOR);
  EXPECT_TRUE(ranks[0].cause().secondary());
}

TEST_F(AgentTest, ALostPeerDoesNotHideTheCrashThatFollows) {
  coordinator_.SetDesired(
      {Job(2, {{"FAKE_WORKER_R0", "ready 0;fault 6 [pair.cc:547] Connection closed by peer [127.0.0.1]:15275"},
               {"FAKE_WORKER_R1", "ready 0;sleep 200;kill 11"}})});
  StartAgent();
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_TRUE(ranks[0].cause().secondary());
  EXPECT_EQ(ranks[0].cause().cause_class(), slipway::v1::CAUSE_CLASS_NETWORK);
  EXPECT_EQ(ranks[1].cause().cause_class(), slipway::v1::CAUSE_CLASS_CRASH);
  EXPECT_EQ(ranks[1].cause().signal(), 11);
  EXPECT_FALSE(ranks[1].cause().secondary());
}

TEST_F(AgentTest, AWorkerThatLeavesTooEarlyIsAFault) {
  coordinator_.SetDesired({Job(1, {{"FAKE_WORKER", "ready 0;exit 0"}})});
  StartAgent();
  const auto ranks = AwaitRanks(1, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_FAULT);
  EXPECT_EQ(ranks[0].cause().cause_class(), slipway::v1::CAUSE_CLASS_CRASH);
  EXPECT_THAT(ranks[0].cause().message(), HasSubstr("exit code 0"));
}

TEST_F(AgentTest, AKilledShimTakesItsWorkerAlongAndIsAPrimaryFault) {
  coordinator_.SetDesired({Job(2, {{"FAKE_WORKER", "ready 0;step 1;hang"}})});
  StartAgent();
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  const link::ShimRecord shim = Shim(0);
  ASSERT_OK(SignalProcess(shim.shim, SIGKILL));
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_FALSE(IsRunning(shim.worker));
  EXPECT_EQ(ranks[0].cause().cause_class(), slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_THAT(ranks[0].cause().message(), HasSubstr("shim"));
  EXPECT_FALSE(ranks[0].cause().secondary());
  EXPECT_TRUE(ranks[1].cause().secondary());
}

TEST_F(AgentTest, ARestartedAgentFindsItsWorkers) {
  coordinator_.SetDesired(
      {Job(2, {{"FAKE_WORKER_R0", "ready 0;commit 3;train 30"}, {"FAKE_WORKER_R1", "ready 0;train 30"}})});
  StartAgent();
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  const link::ShimRecord before = Shim(0);
  const int64_t session = coordinator_.LastHello()->session_number();
  const std::string node = coordinator_.LastHello()->node_id();
  KillAgent();
  EXPECT_TRUE(IsRunning(before.worker));
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.connections() == 2; }));
  EXPECT_EQ(coordinator_.LastHello()->node_id(), node);
  EXPECT_GT(coordinator_.LastHello()->session_number(), session);
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_COMPLETED);
  EXPECT_EQ(ranks[1].outcome(), slipway::v1::RANK_OUTCOME_COMPLETED);
  EXPECT_EQ(Shim(0).worker, before.worker);
  const auto observed = coordinator_.AwaitObserved([](const ObservedState&) { return true; });
  EXPECT_EQ(Find(*observed)->committed_checkpoints_size(), 2);
}

TEST_F(AgentTest, WhatEndedWhileNoAgentLivedIsReported) {
  coordinator_.SetDesired(
      {Job(2, {{"FAKE_WORKER_R0", "ready 0;step 1;commit 1;complete"}, {"FAKE_WORKER_R1", "ready 0;step 1;hang"}})});
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return link::ReadShimRecord(files_, RankDir(1)).ok(); }));
  KillAgent();
  ASSERT_TRUE(Eventually([&] { return link::ReadExitRecord(files_, RankDir(0)).ok(); }));
  ASSERT_OK(SignalProcess(Shim(1).worker, SIGABRT));
  ASSERT_TRUE(Eventually([&] { return link::ReadExitRecord(files_, RankDir(1)).ok(); }));
  StartAgent();
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_COMPLETED);
  EXPECT_EQ(ranks[1].cause().signal(), 6);
  const auto observed = coordinator_.AwaitObserved([](const ObservedState&) { return true; });
  EXPECT_EQ(Find(*observed)->committed_checkpoints_size(), 1);
}

TEST_F(AgentTest, StopSavesAndLeaves) {
  DesiredAssignment job = Job(2, {{"FAKE_WORKER", "train 20"}});
  job.mutable_spec()->mutable_training()->set_train_iters(100'000);
  coordinator_.SetDesired({job});
  StartAgent();
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  job.set_checkpoint_requests(1);
  coordinator_.SetDesired({job});
  const auto saved = coordinator_.AwaitObserved(
      [&](const ObservedState& o) { return Find(o) != nullptr && Find(o)->committed_checkpoints_size() == 1; });
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(Find(*saved)->committed_checkpoints(0).request_number(), 1);
  job.set_stop_requested(true);
  coordinator_.SetDesired({job});
  for (const ObservedRank& rank : AwaitRanks(2, slipway::v1::RANK_STATE_EXITED)) {
    EXPECT_EQ(rank.outcome(), slipway::v1::RANK_OUTCOME_STOPPED);
  }
}

TEST_F(AgentTest, AStubbornWorkerIsKilledAfterTheGrace) {
  DesiredAssignment job = Job(1, {{"FAKE_WORKER", "ready 0;print ready;hang"}});
  job.set_termination_grace_seconds(0.5);
  coordinator_.SetDesired({job});
  StartAgent();
  AwaitRanks(1, slipway::v1::RANK_STATE_READY);
  job.set_phase(slipway::v1::DESIRED_PHASE_STOPPED);
  coordinator_.SetDesired({job});
  const auto ranks = AwaitRanks(1, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].cause().cause_class(), slipway::v1::CAUSE_CLASS_OPERATOR);
  EXPECT_EQ(ranks[0].cause().signal(), 9);
}

TEST_F(AgentTest, AStoppedAttemptIsNeverStarted) {
  DesiredAssignment job = Job(2);
  job.set_phase(slipway::v1::DESIRED_PHASE_STOPPED);
  coordinator_.SetDesired({job});
  StartAgent();
  for (const ObservedRank& rank : AwaitRanks(2, slipway::v1::RANK_STATE_EXITED)) {
    EXPECT_EQ(rank.cause().cause_class(), slipway::v1::CAUSE_CLASS_OPERATOR);
  }
  EXPECT_FALSE(files_.Exists(RankDir(0)).value_or(true));
  EXPECT_TRUE(coordinator_.AwaitApplied());
}

TEST_F(AgentTest, RanksElsewhereWaitForTheAddress) {
  DesiredAssignment job = Job(2);
  job.mutable_ranks()->DeleteSubrange(0, 1);  // rank 0 is on another node
  coordinator_.SetDesired({job});
  StartAgent();
  ASSERT_TRUE(coordinator_.AwaitApplied());
  EXPECT_FALSE(files_.Exists(RankDir(1)).value_or(true));
  job.set_rendezvous_address("127.0.0.1:1");
  coordinator_.SetDesired({job});
  AwaitRanks(1, slipway::v1::RANK_STATE_EXITED);
  ASSERT_OK_AND_ASSIGN(const auto launch, link::ReadLaunch(files_, RankDir(1) + "/launch"));
  EXPECT_EQ(launch.rendezvous_address(), "127.0.0.1:1");
}

TEST_F(AgentTest, AMissedLeaseEndsTheWorkers) {
  coordinator_.SetWelcome(/*lease_seconds=*/1, /*worker_lease_seconds=*/30);
  DesiredAssignment job = Job(2, {{"FAKE_WORKER_R0", "train 20"}, {"FAKE_WORKER_R1", "ready 0;step 1;hang"}});
  job.mutable_spec()->mutable_training()->set_train_iters(100'000);
  coordinator_.SetDesired({job});
  StartAgent();
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  coordinator_.Stop();
  // Rank 0 saves and leaves at once, the other one is killed 10 seconds later.
  EXPECT_TRUE(Eventually([&] { return ProcessesMentioning(directory_ + "/state/attempts").empty(); }));
  coordinator_.Start();
  const auto ranks = AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_STOPPED);
  EXPECT_THAT(ranks[1].cause().message(), HasSubstr("lease"));
}

TEST_F(AgentTest, AShortOutageGoesUnnoticed) {
  DesiredAssignment job = Job(1, {{"FAKE_WORKER", "train 20"}});
  job.mutable_spec()->mutable_training()->set_train_iters(100);
  coordinator_.SetDesired({job});
  StartAgent();
  AwaitRanks(1, slipway::v1::RANK_STATE_RUNNING);
  coordinator_.Stop();
  absl::SleepFor(absl::Milliseconds(500));
  coordinator_.Start();
  const auto ranks = AwaitRanks(1, slipway::v1::RANK_STATE_EXITED);
  EXPECT_EQ(ranks[0].outcome(), slipway::v1::RANK_OUTCOME_COMPLETED);
  // Also those of the outage arrive.
  EXPECT_TRUE(Eventually([&] { return coordinator_.MetricSteps().size() >= 100; }));
}

TEST_F(AgentTest, ALocalAgentStopsItsWorkersAndEndsWithoutItsCoordinator) {
  DesiredAssignment job = Job(2, {{"FAKE_WORKER", "train 20"}});
  job.mutable_spec()->mutable_training()->set_train_iters(100'000);
  coordinator_.SetDesired({job});
  StartAgent({"--local", "--orphan-timeout", "1s"});
  AwaitRanks(2, slipway::v1::RANK_STATE_RUNNING);
  coordinator_.Stop();
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, agent_->Wait(kDeadline));
  EXPECT_TRUE(status.success());
  ASSERT_OK_AND_ASSIGN(const auto record, link::ReadExitRecord(files_, RankDir(0)));
  EXPECT_EQ(record.outcome(), slipway::v1::RANK_OUTCOME_STOPPED);
}

TEST_F(AgentTest, ALocalAgentStopsItsWorkersOnSigterm) {
  DesiredAssignment job = Job(1, {{"FAKE_WORKER", "train 20"}});
  job.mutable_spec()->mutable_training()->set_train_iters(100'000);
  coordinator_.SetDesired({job});
  StartAgent({"--local"});
  AwaitRanks(1, slipway::v1::RANK_STATE_RUNNING);
  ASSERT_OK(agent_->Signal(SIGTERM));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, agent_->Wait(kDeadline));
  EXPECT_TRUE(status.success());
  ASSERT_OK_AND_ASSIGN(const auto record, link::ReadExitRecord(files_, RankDir(0)));
  EXPECT_EQ(record.outcome(), slipway::v1::RANK_OUTCOME_STOPPED);
}

}  // namespace
}  // namespace slipway::worker::agent
