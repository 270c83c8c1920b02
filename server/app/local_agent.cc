#include "server/app/local_agent.h"

#include <csignal>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace slipway::server::app {
namespace {

constexpr char kAgentLockFile[] = "agent.lock";
constexpr absl::Duration kMaxBackoff = absl::Seconds(30);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

}  // namespace

std::vector<std::string> AgentArguments(const LocalAgentOptions& options, int cores) {
  std::vector<std::string> arguments = {options.binary,    "--coordinator", options.coordinator, "--state-dir",
                                        options.state_dir, "--log-level",   options.log_level,   "--local"};
  if (options.node.gpus) {
    arguments.push_back("--gpus");
  } else {
    arguments.push_back("--slots-cpu");
    arguments.push_back(absl::StrCat(options.node.cpu_slots));
    arguments.push_back("--threads-per-slot");
    arguments.push_back(absl::StrCat(std::max(1, cores / options.node.cpu_slots)));
  }
  for (const std::string& root : options.allow_roots) {
    arguments.push_back("--root");
    arguments.push_back(root);
  }
  return arguments;
}

absl::Status LocalAgent::Start() {
  PosixFileSystem files;
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(options_.state_dir));
  if (Adopt()) return absl::OkStatus();
  return Spawn();
}

std::optional<RunningAgent> FindRunningAgent(const std::string& state_dir) {
  PosixFileSystem files;
  const std::string path = JoinPath(state_dir, kAgentLockFile);
  {
    const auto lock = files.Lock(path);
    if (lock.ok() || absl::IsNotFound(lock.status())) return std::nullopt;  // nobody there; released again at once
  }
  const absl::StatusOr<std::string> text = files.ReadFile(path, 64);
  int pid = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &pid)) return std::nullopt;
  const absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(pid);
  if (!identity.ok() || !IsRunning(*identity)) return std::nullopt;
  RunningAgent agent{.identity = *identity};
  std::ifstream command(absl::StrCat("/proc/", pid, "/cmdline"));
  std::string argument;
  while (std::getline(command, argument, '\0')) {
    if (argument == "--coordinator") std::getline(command, agent.coordinator, '\0');
  }
  return agent;
}

bool LocalAgent::Adopt() {
  const std::optional<RunningAgent> agent = FindRunningAgent(options_.state_dir);
  if (!agent.has_value()) return false;
  adopted_ = agent->identity;
  if (agent->coordinator == options_.coordinator) {
    spdlog::info("the agent of an earlier slipwayd still runs (process {}); going on with it", agent->identity.pid);
  } else {
    spdlog::warn("an agent of an earlier slipwayd (process {}) looks for it at {}; ending it: it saves its jobs first",
                 agent->identity.pid, agent->coordinator);
    SignalProcess(agent->identity, SIGTERM).IgnoreError();  // it may have gone by itself
  }
  return true;
}

absl::Status LocalAgent::Spawn() {
  adopted_.reset();
  SpawnOptions spawn;
  spawn.argv = AgentArguments(options_, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  spawn.new_session = true;
  absl::StatusOr<Subprocess> child = Subprocess::Spawn(spawn);
  if (!child.ok()) return Annotate(child.status(), absl::StrCat("starting ", options_.binary));
  child_ = *std::move(child);
  spdlog::info("started the agent (process {})", child_->pid());
  return absl::OkStatus();
}

bool LocalAgent::Running() {
  if (child_.has_value())
    return child_->Wait(absl::ZeroDuration()).status().code() == absl::StatusCode::kDeadlineExceeded;
  return adopted_.has_value() && IsRunning(*adopted_);
}

void LocalAgent::Supervise() {
  if (Running()) return;
  const absl::Duration now = clock_->MonotonicNow();
  if (child_.has_value() || adopted_.has_value()) {
    const std::string how = child_.has_value() ? child_->Wait(absl::ZeroDuration())->ToString() : "gone";
    spdlog::warn("the agent ended ({}); starting it again in {}", how, absl::FormatDuration(backoff_));
    child_.reset();
    adopted_.reset();
    next_start_ = now + backoff_;
    backoff_ = std::min(2 * backoff_, kMaxBackoff);
  }
  if (now < next_start_ || Adopt()) return;
  if (const absl::Status status = Spawn(); !status.ok()) {
    spdlog::error("{}", status.ToString());
    next_start_ = now + backoff_;
    backoff_ = std::min(2 * backoff_, kMaxBackoff);
  }
}

void LocalAgent::Stop(absl::Duration grace) {
  if (!Running()) return;
  const ProcessIdentity identity = child_.has_value() ? child_->identity() : *adopted_;
  SignalProcess(identity, SIGTERM).IgnoreError();  // it may have gone by itself
  const absl::Duration deadline = clock_->MonotonicNow() + grace;
  while (Running() && clock_->MonotonicNow() < deadline) absl::SleepFor(kPoll);
  if (!Running()) return;
  spdlog::warn("the agent did not end within {}; killing it", absl::FormatDuration(grace));
  SignalProcess(identity, SIGKILL).IgnoreError();
  while (Running()) absl::SleepFor(kPoll);
}

}  // namespace slipway::server::app
