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
#include "worker/link/agent_exit.h"

namespace slipway::server::app {
namespace {

constexpr char kAgentLockFile[] = "agent.lock";
constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
constexpr absl::Duration kMaxBackoff = absl::Seconds(30);
// An agent that lived this long was well, and its end is no reason to wait longer than the last time.
constexpr absl::Duration kHealthyRun = absl::Seconds(30);
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
  started_ = clock_->MonotonicNow();
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
  started_ = clock_->MonotonicNow();
  spdlog::info("started the agent (process {})", child_->pid());
  return absl::OkStatus();
}

bool LocalAgent::Running() {
  if (child_.has_value())
    return child_->Wait(absl::ZeroDuration()).status().code() == absl::StatusCode::kDeadlineExceeded;
  return adopted_.has_value() && IsRunning(*adopted_);
}

void LocalAgent::TakeEnd(absl::Duration now) {
  if (now - started_ >= kHealthyRun) {
    ran_well_ = true;
    backoff_ = absl::ZeroDuration();
  }
  std::string how = "gone";
  if (child_.has_value()) {
    const ExitStatus status = *child_->Wait(absl::ZeroDuration());
    how = status.ToString();
    unfit_ = status.code == worker::link::kAgentExitUnfit && !ran_well_;
  }
  child_.reset();
  adopted_.reset();
  if (unfit_) return;
  spdlog::warn("the agent ended ({}); starting it again in {}", how, absl::FormatDuration(backoff_));
  PutOff(now);
}

void LocalAgent::PutOff(absl::Duration now) {
  next_start_ = now + backoff_;
  backoff_ = std::clamp(2 * backoff_, kFirstBackoff, kMaxBackoff);
}

absl::Status LocalAgent::Supervise() {
  if (Running()) return absl::OkStatus();
  const absl::Duration now = clock_->MonotonicNow();
  if (child_.has_value() || adopted_.has_value()) TakeEnd(now);
  if (unfit_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the agent cannot run on this machine, for the reason that it gave above",
                     options_.node.gpus ? "; `--local N` offers N CPU slots instead of GPUs" : ""));
  }
  if (now < next_start_ || Adopt()) return absl::OkStatus();
  if (const absl::Status status = Spawn(); !status.ok()) {
    spdlog::error("{}", status.ToString());
    PutOff(now);
  }
  return absl::OkStatus();
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
