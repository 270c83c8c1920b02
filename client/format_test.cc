#include "client/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "client/environment.h"
#include "client/exit_code.h"
#include "client/job_text.h"
#include "client/live_view.h"
#include "common/posix_file_system.h"
#include "engine/spec/spec_reader.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Job RunningJob() {
  v1::Job job;
  job.set_id("job-1");
  job.set_name("tiny");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_progress()->set_train_iters(100);
  return job;
}

RecordSeen Step(int64_t step, double loss) {
  RecordSeen seen;
  v1::StepMetrics* metrics = seen.record.mutable_step();
  metrics->set_step(step);
  metrics->set_loss(loss);
  metrics->set_learning_rate(1e-4);
  metrics->set_grad_norm(1.25);
  metrics->set_tokens_per_second(12345.6);
  metrics->set_step_seconds(2);
  return seen;
}

TEST(FormatTest, TablesAlignCharactersNotBytes) {
  Table table({"NAME", "STATE"});
  table.Add({"日é", "A"});
  table.Add({"abcdef", "B"});
  EXPECT_EQ(table.Text(), "NAME    STATE\n日é      A\nabcdef  B\n");
}

TEST(FormatTest, NoTextCanSteerTheTerminal) {
  EXPECT_EQ(OneLine("a\nb\x1b[2J\x7f"), "a\\x0ab\\x1b[2J\\x7f");
  EXPECT_EQ(OneLine("\xff日"), "\\xff\\xe6\\x97\\xa5");
  EXPECT_EQ(OneLine("日"), "日");
}

TEST(FormatTest, Numbers) {
  EXPECT_EQ(Grouped(1234567), "1,234,567");
  EXPECT_EQ(Grouped(-123456), "-123,456");
  EXPECT_EQ(Grouped(7), "7");
  EXPECT_EQ(Number(std::nan(""), 5), "NaN");
  EXPECT_EQ(Number(-INFINITY, 5), "-inf");
  EXPECT_EQ(Number(2.345678, 4), "2.346");
}

TEST(FormatTest, JsonIsStableAndValidEvenForNaN) {
  v1::Job job = RunningJob();
  job.mutable_progress()->mutable_last_step_metrics()->set_loss(std::nan(""));
  job.mutable_create_time()->set_seconds(1764482400);
  const Json json = ToJson(job);
  EXPECT_EQ(json["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(json["progress"]["train_iters"], "100");
  EXPECT_EQ(json["progress"]["step"], "0");
  EXPECT_EQ(json["progress"]["last_step_metrics"]["loss"], "NaN");
  EXPECT_EQ(json["create_time"], "2025-11-30T06:00:00Z");
  EXPECT_FALSE(json["progress"]["last_step_metrics"].contains("mfu"));  // unset differs from 0
}

TEST(FormatTest, TheSpecInYamlCanBeSubmittedAgain) {
  v1::ListJobsResponse jobs;
  v1::Job* job = jobs.add_jobs();
  *job = RunningJob();
  job->mutable_spec()->set_name("no");
  job->mutable_spec()->mutable_training()->set_train_iters(100);
  job->mutable_spec()->mutable_optimizer()->set_lr(1e-5);
  const std::string yaml = ToYaml(jobs);
  EXPECT_THAT(yaml, HasSubstr("      training:\n        train_iters: 100\n"));
  EXPECT_THAT(yaml, HasSubstr("      name: \"no\"\n"));
  const std::string one = ToYaml(*job);
  const size_t from = one.find("\nspec:\n");
  ASSERT_NE(from, std::string::npos) << one;
  std::string spec;
  for (size_t at = from + 7; one.compare(at, 2, "  ") == 0;) {
    const size_t end = one.find('\n', at);
    spec += one.substr(at + 2, end + 1 - at - 2);
    at = end + 1;
  }
  const engine::spec::ReadSpecResult read = engine::spec::ReadSpec(spec, "spec");
  EXPECT_THAT(read.faults, IsEmpty()) << spec;
  EXPECT_EQ(read.spec.SerializeAsString(), job->spec().SerializeAsString());
}

TEST(JobTextTest, States) {
  EXPECT_EQ(StateText(v1::JOB_STATE_RUNNING), "RUNNING");
  EXPECT_EQ(StateText(static_cast<v1::JobState>(77)), "STATE_77");
  EXPECT_EQ(StateFromText("running"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(StateFromText("JOB_STATE_PAUSED"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(StateFromText("unspecified"), std::nullopt);
  EXPECT_EQ(StateFromText("nope"), std::nullopt);
}

TEST(JobTextTest, CausesNameRankNodeAndSignal) {
  v1::Cause cause;
  cause.set_cause_class(v1::CAUSE_CLASS_PROCESS_KILLED);
  cause.set_message("killed");
  cause.set_rank(1);
  cause.set_node_id("n2");
  cause.set_signal(9);
  cause.set_phase("step");
  cause.set_step(120);
  EXPECT_EQ(CauseText(cause), "rank 1 on n2: signal 9: killed (PROCESS_KILLED, in step, step 120)");
}

TEST(ExitCodeTest, FollowTheTable) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::AbortedError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 7);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_FAILED), 8);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_CANCELLED), 9);
}

TEST(EnvironmentTest, PathsBecomeAbsolute) {
  Environment env;
  env.variables["HOME"] = "/home/u";
  EXPECT_EQ(AbsolutePath("/a/../b", "/d", env), "/b");
  EXPECT_EQ(AbsolutePath("x/./y/", "/d", env), "/d/x/y");
  EXPECT_EQ(AbsolutePath("../x", "/d/e", env), "/d/x");
  EXPECT_EQ(AbsolutePath("~/m", "/d", env), "/home/u/m");
  EXPECT_EQ(AbsolutePath("~m", "/d", env), "/d/~m");
  EXPECT_EQ(AbsolutePath(".", "/d", env), "/d");
}

TEST(EnvironmentTest, TheServerComesFromFlagVariableFileOrDefault) {
  const testing::TempDir temp;
  const std::string directory = temp.path();
  PosixFileSystem files;
  ASSERT_OK(files.MakeDirectories(directory + "/slipway"));
  Environment env;
  env.variables["XDG_CONFIG_HOME"] = directory + "/none";
  EXPECT_EQ(*ServerAddress("", env), "127.0.0.1:7670");
  env.variables["XDG_CONFIG_HOME"] = directory;
  ASSERT_OK(files.WriteFileAtomically(directory + "/slipway/config.yaml", "server: host:1\n"));
  EXPECT_EQ(*ServerAddress("", env), "host:1");
  env.variables["SLIPWAY_SERVER"] = "host:2";
  EXPECT_EQ(*ServerAddress("", env), "host:2");
  EXPECT_EQ(*ServerAddress("host:3", env), "host:3");
  env.variables.erase("SLIPWAY_SERVER");
  ASSERT_OK(files.WriteFileAtomically(directory + "/slipway/config.yaml", "sever: host:1\n"));
  EXPECT_THAT(ServerAddress("", env).status().ToString(), HasSubstr("config.yaml:1:1: sever: unknown key"));
}

TEST(LiveViewTest, PlainLinesHaveEverything) {
  LiveView view({});
  view.Apply(JobSeen{RunningJob()});
  view.Apply(Step(1, 2.5));
  RecordSeen eval;
  eval.record.mutable_eval()->set_step(1);
  eval.record.mutable_eval()->set_loss(2.25);
  eval.record.mutable_eval()->set_perplexity(9.4877);
  eval.dropped = 3;
  view.Apply(eval);
  EXPECT_THAT(
      view.TakeLines(),
      ElementsAre("job-1 RUNNING", HasSubstr("step 1/100  loss 2.5  lr 0.0001  grad_norm 1.25  12,346 tok/s  2 s/step"),
                  "(3 records were not received)", HasSubstr("eval at step 1  loss 2.25  perplexity 9.4877")));
  EXPECT_THAT(view.TakeLines(), IsEmpty());
  EXPECT_THAT(view.Block(80), IsEmpty());
}

TEST(LiveViewTest, TheBlockFitsTheTerminalAndTellsTheTimeLeft) {
  LiveView view({.terminal = true});
  view.Apply(JobSeen{RunningJob()});
  view.Apply(Step(49, 3));
  view.Apply(Step(50, 2.5));
  const std::vector<std::string> block = view.Block(80);
  ASSERT_EQ(block.size(), 4u);
  EXPECT_EQ(block[0], "job-1  tiny  RUNNING");
  EXPECT_THAT(block[1], HasSubstr("step 50/100 ["));
  EXPECT_THAT(block[1], HasSubstr("50.0%  eta 1m40s"));
  EXPECT_EQ(block[2], "loss 2.5   lr 0.0001   grad norm 1.25");
  for (const int width : {20, 30, 200}) {
    for (const std::string& line : view.Block(width)) EXPECT_LE(DisplayWidth(line), static_cast<size_t>(width)) << line;
  }
  EXPECT_THAT(view.TakeLines(), IsEmpty());  // steps are in the block
}

TEST(LiveViewTest, AConnectionThatBreaksIsSaidOnce) {
  LiveView view({});
  view.Apply(ConnectionBack{});
  view.Apply(JobSeen{RunningJob()});
  view.Apply(ConnectionLost{absl::UnavailableError("gone")});
  view.Apply(ConnectionBack{});
  EXPECT_THAT(view.TakeLines(),
              ElementsAre("job-1 RUNNING", HasSubstr("connection lost, trying again (the job goes on): gone"),
                          "connected again"));
}

TEST(BlockPainterTest, DrawsOverTheOldBlock) {
  BlockPainter painter;
  EXPECT_EQ(painter.Paint({}, {"a", "b"}), "\r\x1b[Ja\nb\n");
  EXPECT_EQ(painter.Paint({"event"}, {"c"}), "\x1b[2A\r\x1b[Jevent\nc\n");
  EXPECT_EQ(painter.Paint({}, {}), "\x1b[1A\r\x1b[J");
}

TEST(ProgressBarTest, IsAlwaysAsWide) {
  for (const double share : {-1.0, 0.0, 0.4, 1.0, 7.0}) EXPECT_EQ(DisplayWidth(ProgressBar(share, 10)), 12u);
}

}  // namespace
}  // namespace slipway::client
