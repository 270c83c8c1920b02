// The real slipway-agent and slipway-shim between a coordinator and workers that the test scripts.
#include "worker/agent/agent.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "common/subprocess.h"
#include "tests/support/processes.h"
#include "tests/support/status_matchers.h"
#include "worker/agent/testing/fake_coordinator.h"
#include "worker/link/rank_files.h"

extern char** environ;

namespace slipway::worker::agent {
namespace {

using ::slipway::testing::BinaryPath;
using ::slipway::testing::Eventually;
using ::slipway::testing::ProcessesMentioning;
using slipway::v1::DesiredAssignment;
using slipway::v1::ObservedAssignment;
using slipway::v1::ObservedRank;
using slipway::v1::ObservedState;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static int number = 0;
    directory_ = absl::StrCat(::testing::TempDir(), "agent_", ::getpid(), "_", ++number);
    ASSERT_OK(files_.MakeDirectories(directory_ + "/out"));
    coordinator_.SetWelcome(60, 30);
    coordinator_.Start();
  }

  // Whatever the test did, nothing may be left running.
  void TearDown() override {
    if (agent_.has_value() && IsRunning(agent_->identity())) {
      coordinator_.SetDesired({});
      Eventually([&] { return ProcessesMentioning(directory_ + "/state/attempts").empty(); });
      (void)agent_->Signal(SIGTERM);
      EXPECT_OK(agent_->Wait(kDeadline));
    }
    EXPECT_TRUE(Eventually([&] { return ProcessesMentioning(directory_).empty(); }))
        << ::testing::PrintToString(ProcessesMentioning(directory_));
    coordinator_.Stop();
    std::filesystem::remove_all(directory_);
  }

  void StartAgent(const std::vector<std::string>& flags = {}) {
    SpawnOptions spawn{.argv = {BinaryPath("slipway-agent"), "--coordinator", coordinator_.address(), "--state-dir",
                                directory_ + "/state", "--slots-cpu", "2", "--root", directory_, "--metrics", "off",
                                "--log-file", directory_ + "/agent.log", "--log-level", "off"}};
    spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
    std::vector<std::string> environment = {absl::StrCat("SLIPWAY_WORKER=", BinaryPath("slipway-fake-worker"))};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    spawn.environment = environment;
    ASSERT_OK_AND_ASSIGN(agent_, Subprocess::Spawn(spawn));
  }

  void KillAgent() {
    ASSERT_OK(agent_->Signal(SIGKILL));
    ASSERT_OK(agent_->Wait(kDeadline));
  }

  DesiredAssignment Job(int world_size, const std::map<std::string, std::string>& scripts = {}) {
    DesiredAssignment job;
    job.set_job_id("job-1");
    job.set_epoch(1);
    job.set_phase(slipway::v1::DESIRED_PHASE_RUN);
    job.set_world_size(world_size);
    job.set_output_dir(directory_ + "/out/job-1");
    job.set_checkpoint_dir(directory_ + "/out/job-1/checkpoints");
    job.set_nonce("nonce");
    job.set_termination_grace_seconds(20);
    for (int rank = 0; rank < world_size; ++rank) {
      slipway::v1::RankPlacement& placement = *job.add_ranks();
      placement.set_rank(rank);
      placement.set_slot(rank);
    }
    *job.mutable_all_ranks() = job.ranks();
    for (const auto& [name, script] : scripts) (*job.mutable_spec()->mutable_env())[name] = script;
    return job;
  }

  static const ObservedAssignment* Find(const ObservedState& state, int64_t epoch = 1) {
    for (const ObservedAssignment& assignment : state.assignments()) {
      if (assignment.job_id() == "job-1" && assignment.epoch() == epoch) return &assignment;
    }
    return nullptr;
  }

  // The job's ranks once all of them are in this state.
  std::vector<ObservedRank> AwaitRanks(int count, slipway::v1::RankState state) {
    const auto observed = coordinator_.AwaitObserved([&](const ObservedState& o) {
      const ObservedAssignment* job = Find(o);
      if (job == nullptr || job->ranks_size() != count) return false;
      return std::all_of(job->ranks().begin(), job->ranks().end(),
                         [&](const ObservedRank& rank) { return rank.state() == state; });
    });
    EXPECT_TRUE(observed.has_value()) << "the ranks never came to " << slipway::v1::RankState_Name(state) << "\n"
                                      << files_.ReadFile(directory_ + "/agent.log").value_or("");
    if (!observed.has_value()) return std::vector<ObservedRank>(static_cast<size_t>(count));
    const ObservedAssignment* job = Find(*observed);
    return {job->ranks().begin(), job->ranks().end()};
  }

  std::string RankDir(int rank) { return absl::StrCat(directory_, "/state/attempts/job-1/e1/r", rank); }
  link::ShimRecord Shim(int rank) {
    absl::StatusOr<link::ShimRecord> record = link::ReadShimRecord(files_, RankDir(rank));
    EXPECT_OK(record);
    return record.value_or(link::ShimRecord());
  }
  slipway::v1::LogRead LogOf(int rank) {
    slipway::v1::LogRead read;
    read.set_job_id("job-1");
    read.set_rank(rank);
    read.set_epoch(1);
    return read;
  }

  PosixFileSystem files_;
  std::string directory_;
  FakeCoordinator coordinator_;
  std::optional<Subprocess> agent_;
};

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

TEST_F(AgentTest, ASecondAgentIsRefusedWithTheFirstOnesPid) {
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.connections() == 1; }));
  Subprocess first = *agent_;
  StartAgent();
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, agent_->Wait(kDeadline));
  EXPECT_EQ(status.code, kExitLocked);
  const std::string log = files_.ReadFile(directory_ + "/agent.log").value_or("");
  EXPECT_THAT(log, HasSubstr(absl::StrCat(first.pid())));
  EXPECT_THAT(log, HasSubstr("agent.lock"));
  agent_ = first;
}

TEST_F(AgentTest, PreflightReportsWhatTheWorkerFound) {
  DesiredAssignment job = Job(2, {{"FAKE_PREFLIGHT", "refuse no such file"}});
  job.set_phase(slipway::v1::DESIRED_PHASE_PREFLIGHT);
  coordinator_.SetDesired({job});
  StartAgent();
  const auto has_result = [](const ObservedState& o) { return Find(o) != nullptr && Find(o)->has_preflight(); };
  auto observed = coordinator_.AwaitObserved(has_result);
  ASSERT_TRUE(observed.has_value());
  EXPECT_FALSE(Find(*observed)->preflight().ok());
  EXPECT_EQ(Find(*observed)->preflight().faults(0).message(), "no such file");
  EXPECT_EQ(Find(*observed)->preflight().dataset().samples(), 12);
}

TEST_F(AgentTest, APreflightThatCrashesOrHangsIsAFaultToo) {
  DesiredAssignment crashes = Job(1, {{"FAKE_PREFLIGHT", "print some output;kill 11"}});
  crashes.set_phase(slipway::v1::DESIRED_PHASE_PREFLIGHT);
  DesiredAssignment hangs = Job(1, {{"FAKE_PREFLIGHT", "hang"}});
  hangs.set_phase(slipway::v1::DESIRED_PHASE_PREFLIGHT);
  hangs.set_epoch(2);
  coordinator_.SetDesired({crashes, hangs});
  StartAgent({"--preflight-timeout", "1s"});
  const auto observed = coordinator_.AwaitObserved([](const ObservedState& o) {
    return Find(o, 1) != nullptr && Find(o, 1)->has_preflight() && Find(o, 2) != nullptr && Find(o, 2)->has_preflight();
  });
  ASSERT_TRUE(observed.has_value());
  EXPECT_THAT(Find(*observed, 1)->preflight().faults(0).message(), HasSubstr("signal 11"));
  EXPECT_THAT(Find(*observed, 1)->preflight().faults(0).message(), HasSubstr("some output"));
  EXPECT_THAT(Find(*observed, 2)->preflight().faults(0).message(), HasSubstr("did not finish within 1s"));
}

TEST_F(AgentTest, PathsOutsideTheRootsAreRefused) {
  DesiredAssignment job = Job(1);
  job.set_output_dir("/somewhere/else");
  DesiredAssignment preflight = job;
  preflight.set_epoch(2);
  preflight.set_phase(slipway::v1::DESIRED_PHASE_PREFLIGHT);
  coordinator_.SetDesired({job, preflight});
  StartAgent();
  const auto ranks = AwaitRanks(1, slipway::v1::RANK_STATE_EXITED);
  EXPECT_THAT(ranks[0].cause().message(), HasSubstr("/somewhere/else"));
  EXPECT_THAT(ranks[0].cause().message(), HasSubstr(directory_));
  const auto observed =
      coordinator_.AwaitObserved([](const ObservedState& o) { return Find(o, 2) && Find(o, 2)->has_preflight(); });
  ASSERT_TRUE(observed.has_value());
  EXPECT_THAT(Find(*observed, 2)->preflight().faults(0).message(), HasSubstr("/somewhere/else"));
  EXPECT_FALSE(files_.Exists("/somewhere/else").value_or(true));
}

TEST_F(AgentTest, LogsOfAnAbortedWorkerAreComplete) {
  coordinator_.SetDesired({Job(2, {{"FAKE_WORKER_R0", R"(print one\ntwo\n\xff\xfe;spam 1048576;print \nlast;kill 6)"},
                                   {"FAKE_WORKER_R1", R"(env OMP_NUM_THREADS;env MY_NAME;hang)"},
                                   {"MY_NAME", "my value"}})});
  StartAgent({"--threads-per-slot", "5"});
  AwaitRanks(2, slipway::v1::RANK_STATE_EXITED);
  const std::string all = "one\ntwo\n\xff\xfe" + std::string(1048576, 's') + "\nlast";
  FakeCoordinator::LogText log = coordinator_.ReadLog(LogOf(0));
  EXPECT_TRUE(log.end);
  EXPECT_EQ(log.error, "");
  EXPECT_TRUE(log.by_rank[0] == all) << log.by_rank[0].size();
  slipway::v1::LogRead tail = LogOf(0);
  tail.set_tail_lines(1);
  tail.set_follow(true);
  EXPECT_EQ(coordinator_.ReadLog(tail).by_rank[0], "last");
  slipway::v1::LogRead both = LogOf(0);
  both.clear_rank();
  both.set_epoch(0);
  log = coordinator_.ReadLog(both);
  EXPECT_EQ(log.by_rank[1], "OMP_NUM_THREADS=5\nMY_NAME=my value\n");
  EXPECT_EQ(log.by_rank[0].size(), all.size());
  slipway::v1::LogRead unknown = LogOf(0);
  unknown.set_job_id("../../etc");
  EXPECT_THAT(coordinator_.ReadLog(unknown).error, HasSubstr("job id"));
  EXPECT_THAT(coordinator_.ReadLog(LogOf(7)).error, HasSubstr("rank 7"));
}

TEST_F(AgentTest, ALogIsFollowedToItsEnd) {
  coordinator_.SetDesired({Job(1, {{"FAKE_WORKER", R"(print begin\n;wait-stop;print end;stop)"}})});
  StartAgent();
  AwaitRanks(1, slipway::v1::RANK_STATE_STARTING);
  slipway::v1::LogRead read = LogOf(0);
  read.set_follow(true);
  const int64_t id = coordinator_.StartLogRead(read);
  ASSERT_TRUE(Eventually([&] { return coordinator_.LogSoFar(id).by_rank[0] == "begin\n"; }));
  EXPECT_FALSE(coordinator_.LogSoFar(id).end);
  ASSERT_OK(SignalProcess(Shim(0).shim, SIGTERM));
  ASSERT_TRUE(Eventually([&] { return coordinator_.LogSoFar(id).end; }));
  EXPECT_EQ(coordinator_.LogSoFar(id).by_rank[0], "begin\nend");
}

}  // namespace
}  // namespace slipway::worker::agent
