// What the agent does beside running ranks: its lock, preflight, roots and logs.
#include "worker/agent/agent.h"

#include <sys/stat.h>

#include "tests/support/agent_fixture.h"
#include "worker/link/agent_exit.h"

namespace slipway::worker::agent {
namespace {

TEST_F(AgentTest, ASecondAgentIsRefusedWithTheFirstOnesPid) {
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.connections() == 1; }));
  Subprocess first = *agent_;
  StartAgent();
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, agent_->Wait(kDeadline));
  EXPECT_EQ(status.code, link::kAgentExitLocked);
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
  log = coordinator_.ReadLog(LogOf(7));  // it never printed anything
  EXPECT_EQ(log.error, "");
  EXPECT_TRUE(log.end);
  EXPECT_EQ(log.by_rank[7], "");
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
