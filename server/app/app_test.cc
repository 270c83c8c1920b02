// slipwayd as a process: its command line, its data directory and its end. Children are waited for and never left
// behind.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/posix_file_system.h"
#include "common/subprocess.h"
#include "server/app/flags.h"
#include "server/app/local_agent.h"
#include "slipway/v1/cluster_service.grpc.pb.h"
#include "slipway/v1/job_service.grpc.pb.h"
#include "tests/support/status_matchers.h"

namespace slipway::server::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParsedFlags Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "slipwayd");
  return ParseFlags(static_cast<int>(arguments.size()), arguments.data());
}

TEST(FlagsTest, DefaultsAndLocalRoots) {
  ::setenv("XDG_DATA_HOME", "/xdg", 1);
  ::setenv("HOME", "/home/u", 1);
  ParsedFlags parsed = Parse({});
  ASSERT_TRUE(parsed.flags.has_value());
  EXPECT_EQ(parsed.flags->data_dir, "/xdg/slipway");
  EXPECT_EQ(parsed.flags->output_root, "/xdg/slipway/jobs");
  EXPECT_EQ(parsed.flags->listen, "127.0.0.1:7670");
  EXPECT_TRUE(parsed.flags->allow_roots.empty());
  ::unsetenv("XDG_DATA_HOME");
  parsed = Parse({"--local", "2", "--allow-root", "/data/"});
  ASSERT_TRUE(parsed.flags.has_value());
  EXPECT_EQ(parsed.flags->data_dir, "/home/u/.local/share/slipway");
  EXPECT_EQ(parsed.flags->local->cpu_slots, 2);
  EXPECT_THAT(parsed.flags->allow_roots, Contains("/home/u"));
  EXPECT_TRUE(Parse({"--local", "gpu"}).flags->local->gpus);
}

TEST(FlagsTest, MistakesAreExplainedWithExitCodeTwo) {
  for (const auto& arguments : std::vector<std::vector<const char*>>{
           {"--local", "0"}, {"--local", "many"}, {"--agent-lease", "0"}, {"--log-level", "loud"}, {"--nonsense"}}) {
    const ParsedFlags parsed = Parse(arguments);
    EXPECT_FALSE(parsed.flags.has_value());
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_NE(parsed.err, "") << arguments[0];
  }
  EXPECT_EQ(Parse({"--version"}).exit_code, 0);
  EXPECT_THAT(Parse({"--help"}).out, HasSubstr("--data-dir"));
}

TEST(LocalAgentTest, CoresAreShared) {
  LocalAgentOptions options{.binary = "/b/slipway-agent",
                            .state_dir = "/s",
                            .coordinator = "127.0.0.1:1",
                            .node = {.cpu_slots = 2},
                            .allow_roots = {"/r"},
                            .log_level = "info"};
  EXPECT_THAT(AgentArguments(options, 9),
              ElementsAre("/b/slipway-agent", "--coordinator", "127.0.0.1:1", "--state-dir", "/s", "--log-level",
                          "info", "--local", "--slots-cpu", "2", "--threads-per-slot", "4", "--root", "/r"));
  EXPECT_THAT(AgentArguments(options, 1), Contains("1"));
}

// An agent that is a shell script: it notes each start and does what its file `do` says.
class LocalAgentProcessTest : public ::testing::Test {
 protected:
  LocalAgentProcessTest() : directory_(std::filesystem::path(::testing::TempDir()) / "slipwayd_local_agent") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "agent") << "#!/bin/sh\ncd " << directory_.string() << "\necho $$ >> starts\n. ./do\n";
    std::filesystem::permissions(directory_ / "agent", std::filesystem::perms::owner_all);
  }
  ~LocalAgentProcessTest() override {
    agent_.Stop(absl::ZeroDuration());
    std::filesystem::remove_all(directory_);
  }

  void Do(const std::string& commands) { std::ofstream(directory_ / "do") << commands << "\n"; }
  // The processes that were started, in their order.
  std::vector<int> Starts() {
    std::vector<int> pids;
    std::ifstream file(directory_ / "starts");
    for (int pid = 0; file >> pid;) pids.push_back(pid);
    return pids;
  }
  // Supervises while the clock stands still: until the newest process is gone and that was noticed.
  absl::Status AwaitEnd() {
    while (Starts().empty() && absl::Now() < deadline_) absl::SleepFor(absl::Milliseconds(2));
    if (Starts().empty()) return absl::DeadlineExceededError("it was never started");
    const int pid = Starts().back();
    absl::Status status;
    while (::kill(pid, 0) == 0 && absl::Now() < deadline_) {
      status = agent_.Supervise();
      absl::SleepFor(absl::Milliseconds(2));
    }
    return status;
  }
  // Until there were so many starts.
  void AwaitStart(size_t starts) {
    while (Starts().size() < starts && absl::Now() < deadline_) absl::SleepFor(absl::Milliseconds(2));
    ASSERT_EQ(Starts().size(), starts);
  }

  const std::filesystem::path directory_;
  const absl::Time deadline_ = absl::Now() + absl::Seconds(60);
  SimClock clock_;
  LocalAgent agent_{{.binary = (directory_ / "agent").string(),
                     .state_dir = (directory_ / "state").string(),
                     .coordinator = "127.0.0.1:1",
                     .node = {.gpus = true},
                     .allow_roots = {},
                     .log_level = "info"},
                    &clock_};
};

TEST_F(LocalAgentProcessTest, AnAgentThatCannotRunHereIsNotStartedForEver) {
  Do("exit 4");
  ASSERT_OK(agent_.Start());
  const absl::Status status = AwaitEnd();
  EXPECT_THAT(status, slipway::testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--local N")));
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(agent_.Supervise(), status) << "and never again";
  EXPECT_EQ(Starts().size(), 1u);
}

TEST_F(LocalAgentProcessTest, RestartsWaitLongerUntilItHasRunWell) {
  Do("exit 1");
  ASSERT_OK(agent_.Start());
  ASSERT_OK(AwaitEnd());
  ASSERT_OK(agent_.Supervise());
  AwaitStart(2);  // the first restart is at once
  for (size_t starts = 3; starts <= 5; ++starts) {
    ASSERT_OK(AwaitEnd());
    clock_.Advance(absl::Seconds(1 << (starts - 3)) - absl::Milliseconds(1));
    ASSERT_OK(agent_.Supervise());
    if (starts == 5) Do("exec sleep 1000");
    EXPECT_EQ(Starts().size(), starts - 1) << "too early";
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_OK(agent_.Supervise());
    AwaitStart(starts);
  }
  clock_.Advance(absl::Minutes(1));
  ASSERT_OK(agent_.Supervise());
  ASSERT_EQ(::kill(Starts().back(), SIGKILL), 0);
  ASSERT_OK(AwaitEnd());
  ASSERT_OK(agent_.Supervise());
  AwaitStart(6);  // at once, not after 8 s
}

class SlipwaydTest : public ::testing::Test {
 protected:
  SlipwaydTest()
      : directory_(std::filesystem::path(::testing::TempDir()) /
                   (std::string("slipwayd_") + ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~SlipwaydTest() override { std::filesystem::remove_all(directory_); }

  Subprocess Start(const std::vector<std::string>& more = {}) {
    std::filesystem::remove(directory_ / "slipwayd.json");
    const std::string binary = absl::StrCat(std::getenv("SLIPWAY_BIN_DIR"), "/slipwayd");
    SpawnOptions spawn;
    spawn.argv = {binary,        "--data-dir", directory_.string(),          "--listen", "127.0.0.1:0", "--http",
                  "127.0.0.1:0", "--log-file", (directory_ / "log").string()};
    spawn.argv.insert(spawn.argv.end(), more.begin(), more.end());
    spawn.new_session = true;
    spawn.parent_death_signal = SIGKILL;
    absl::StatusOr<Subprocess> child = Subprocess::Spawn(spawn);
    EXPECT_OK(child);
    return *std::move(child);
  }

  // The gRPC address, once it serves; empty when the process ends instead.
  std::string AwaitAddress(Subprocess& child) {
    while (child.Wait(absl::Milliseconds(10)).status().code() == absl::StatusCode::kDeadlineExceeded) {
      std::ifstream file(directory_ / "slipwayd.json");
      if (!file) continue;
      const auto addresses = nlohmann::json::parse(file);
      EXPECT_EQ(addresses["pid"], child.pid());
      return addresses["grpc_address"];
    }
    return "";
  }

  std::string Log() {
    std::stringstream text;
    text << std::ifstream(directory_ / "log").rdbuf();
    return text.str();
  }

  const std::filesystem::path directory_;
};

// O11
TEST_F(SlipwaydTest, ALeftOverLockIsNoObstacleAndALiveOneIs) {
  const std::filesystem::path lock = directory_ / "slipwayd.lock";
  for (const std::string& left_over : {std::string("4194303\n"), absl::StrCat(::getpid(), "\n"), std::string()}) {
    std::ofstream(lock) << left_over;  // a dead pid, somebody else's pid, an empty file
    Subprocess child = Start();
    EXPECT_NE(AwaitAddress(child), "") << Log();
    ASSERT_OK(child.Signal(SIGKILL));
    ASSERT_OK(child.Wait());
  }
  Subprocess first = Start();
  ASSERT_NE(AwaitAddress(first), "");
  Subprocess second = Start();
  ASSERT_OK_AND_ASSIGN(const ExitStatus refused, second.Wait(absl::Seconds(60)));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(Log(), HasSubstr(absl::StrCat("lock file ", lock.string(), " is held by process ", first.pid())));
  ASSERT_OK(first.Signal(SIGTERM));
  ASSERT_OK_AND_ASSIGN(const ExitStatus ended, first.Wait(absl::Seconds(60)));
  EXPECT_TRUE(ended.success()) << ended.ToString();
  EXPECT_FALSE(std::filesystem::exists(lock));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "slipwayd.json"));
}

TEST_F(SlipwaydTest, LocalGpuWithoutAGpuEndsWithAMessage) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // also where there is one
  ::setenv("SLIPWAY_SHIM", "/bin/true", 1);
  ::setenv("SLIPWAY_WORKER", "/bin/true", 1);
  Subprocess child = Start({"--local", "gpu"});
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "SLIPWAY_SHIM", "SLIPWAY_WORKER"}) ::unsetenv(name);
  ASSERT_OK_AND_ASSIGN(const ExitStatus ended, child.Wait(absl::Seconds(60)));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(Log(), HasSubstr("the agent cannot run on this machine"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "slipwayd.json"));
}

TEST_F(SlipwaydTest, AnOpenWatchDoesNotHoldTheEndUp) {
  Subprocess child = Start();
  const std::string address = AwaitAddress(child);
  ASSERT_NE(address, "") << Log();
  auto stub = v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto watch = stub->WatchJobs(&context, {});
  v1::WatchJobsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_TRUE(response.has_bookmark());
  ASSERT_OK(child.Signal(SIGINT));
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_OK_AND_ASSIGN(const ExitStatus ended, child.Wait(absl::Seconds(60)));
  EXPECT_TRUE(ended.success()) << ended.ToString();
}

TEST_F(SlipwaydTest, WhatWasAcknowledgedSurvivesAKill) {
  Subprocess child = Start();
  std::string address = AwaitAddress(child);
  ASSERT_NE(address, "") << Log();
  v1::CreateJobRequest request;
  v1::TrainingSpec& spec = *request.mutable_spec();
  spec.set_name("kept");
  spec.mutable_model()->set_preset("qwen3_0_6b");
  spec.mutable_dataset()->set_kind("mock");
  spec.mutable_training()->set_train_iters(10);
  spec.mutable_training()->set_global_batch_size(1);
  spec.mutable_training()->set_seq_length(16);
  spec.mutable_optimizer()->set_lr(1e-3);
  std::vector<std::string> ids;
  {
    auto stub = v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    for (int i = 0; i < 10; ++i) {
      grpc::ClientContext context;
      v1::CreateJobResponse response;
      const grpc::Status status = stub->CreateJob(&context, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ids.push_back(response.job().id());
    }
  }
  ASSERT_OK(child.Signal(SIGKILL));
  ASSERT_OK(child.Wait());
  child = Start();
  address = AwaitAddress(child);
  ASSERT_NE(address, "") << Log();
  auto stub = v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::ListJobsResponse list;
  ASSERT_TRUE(stub->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 10);
  ASSERT_OK(child.Signal(SIGTERM));
  ASSERT_OK(child.Wait(absl::Seconds(60)));
}

}  // namespace
}  // namespace slipway::server::app
