// The real slipway-agent and slipway-shim between a coordinator and workers that the test scripts.
#ifndef SLIPWAY_TESTS_SUPPORT_AGENT_FIXTURE_H_
#define SLIPWAY_TESTS_SUPPORT_AGENT_FIXTURE_H_

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
using ::slipway::testing::BinaryPath;
using ::slipway::testing::Eventually;
using ::slipway::testing::ProcessesMentioning;
using slipway::v1::DesiredAssignment;
using slipway::v1::ObservedAssignment;
using slipway::v1::ObservedRank;
using slipway::v1::ObservedState;
using ::testing::HasSubstr;

inline constexpr absl::Duration kDeadline = absl::Seconds(30);

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

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_TESTS_SUPPORT_AGENT_FIXTURE_H_
