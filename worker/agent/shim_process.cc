#include "worker/agent/shim_process.h"

#include <fcntl.h>
#include <signal.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "spdlog/spdlog.h"

namespace slipway::worker::agent {
namespace {

constexpr absl::Duration kKillInterval = absl::Milliseconds(500);
// A shim that has not buried its killed worker by then hangs itself (SIGSTOP, a dead disk).
constexpr absl::Duration kKillShimAfter = absl::Seconds(10);

}  // namespace

ShimProcess::ShimProcess(std::string state_dir, FileSystem& files, const Clock& clock)
    : state_dir_(std::move(state_dir)), files_(files), clock_(clock), started_at_(clock.MonotonicNow()) {
  if (files_.Exists(state_dir_).value_or(true)) {
    life_ = Life::kAlive;  // until shown otherwise
    Poll();
  }
}

absl::Status ShimProcess::Start(const slipway::worker::v1::WorkerLaunch& launch, const StartOptions& options) {
  life_ = Life::kAlive;
  started_at_ = clock_.MonotonicNow();
  absl::Status status = files_.MakeDirectories(state_dir_);
  if (status.ok()) status = link::WriteLaunch(files_, JoinPath(state_dir_, link::kLaunchFile), launch);
  if (status.ok()) status = Spawn(options);
  if (!status.ok()) RecordSpawnFailure(std::string(status.message()));
  return status;
}

void ShimProcess::RefuseToStart(const absl::Status& reason) {
  if (const absl::Status status = files_.MakeDirectories(state_dir_); !status.ok())
    spdlog::warn("{}", status.ToString());
  RecordSpawnFailure(std::string(reason.message()));
}

void ShimProcess::RecordSpawnFailure(const std::string& reason) {
  slipway::worker::v1::ExitRecord record;
  record.set_spawn_failed(true);
  record.set_spawn_error(reason);
  record.set_unix_time_nanos(absl::ToUnixNanos(clock_.WallNow()));
  if (const absl::Status status = link::WriteExitRecord(files_, state_dir_, record); !status.ok()) {
    spdlog::warn("{}", status.ToString());  // it counts all the same, as long as this agent lives
  }
  record_ = std::move(record);
  End();
}

absl::Status ShimProcess::Spawn(const StartOptions& options) {
  const std::string log = JoinPath(state_dir_, "shim.log");
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!output.valid()) return ErrnoToStatus(errno, absl::StrCat("opening ", log));
  SpawnOptions spawn{.argv = {options.shim_binary, "--state-dir", state_dir_, "--log", options.log_path},
                     .environment = options.environment,
                     .stdout_fd = output.get(),
                     .stderr_fd = output.get(),
                     .new_session = true};
  if (options.rendezvous_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--rendezvous-fd", absl::StrCat(kRendezvousFd)});
    spawn.passed_fds = {{options.rendezvous_fd, kRendezvousFd}};
  }
  spawn.argv.push_back("--");
  spawn.argv.insert(spawn.argv.end(), options.command.begin(), options.command.end());
  SLIPWAY_ASSIGN_OR_RETURN(child_, Subprocess::Spawn(spawn));
  return absl::OkStatus();
}

void ShimProcess::Poll() {
  if (life_ != Life::kAlive) return;
  ReapShim();
  if (!shim_.has_value()) ReadShimRecord();
  // In this order: a shim that has just ended has written its record before.
  const bool shim_lives = ShimLives();
  absl::StatusOr<slipway::worker::v1::ExitRecord> record = link::ReadExitRecord(files_, state_dir_);
  if (record.ok()) {
    if (!shim_lives) {
      record_ = *std::move(record);
      End();
    }
    return;
  }
  if (!absl::IsNotFound(record.status()) && !shim_lives) {
    shim_error_ = std::string(record.status().message());
  } else if (shim_lives) {
    return;
  }
  if (!shim_.has_value() && !machine_restarted_) {
    RecordNeverStarted();
    return;
  }
  // The kernel kills the worker with its shim. What it started stays in its process group.
  if (shim_.has_value()) {
    SignalWorkerGroup(SIGKILL);
    if (IsRunning(shim_->worker)) return;
  }
  End();
}

void ShimProcess::ReapShim() {
  if (child_.has_value() && child_->Wait(absl::ZeroDuration()).ok()) child_.reset();
}

void ShimProcess::ReadShimRecord() {
  absl::StatusOr<link::ShimRecord> record = link::ReadShimRecord(files_, state_dir_);
  if (record.ok()) {
    shim_ = *std::move(record);
  } else if (absl::IsFailedPrecondition(record.status())) {
    machine_restarted_ = true;
  } else if (!absl::IsNotFound(record.status())) {
    shim_error_ = std::string(record.status().message());
  }
}

bool ShimProcess::ShimLives() {
  if (child_.has_value()) return true;
  return shim_.has_value() && IsRunning(shim_->shim);
}

void ShimProcess::RecordNeverStarted() {
  // Whoever holds the lock decides: a shim that comes later finds the exit record and leaves.
  const absl::StatusOr<std::unique_ptr<FileLock>> lock = files_.Lock(JoinPath(state_dir_, link::kShimLockFile));
  if (absl::IsFailedPrecondition(lock.status())) return;  // a shim lives and has not written its record yet
  if (files_.Exists(JoinPath(state_dir_, link::kShimFile)).value_or(false) ||
      files_.Exists(JoinPath(state_dir_, link::kExitFile)).value_or(false)) {
    return;  // it came and went in between; the next Poll sees it
  }
  RecordSpawnFailure(shim_error_.empty() ? "its shim died before it started a worker" : shim_error_);
}

void ShimProcess::End() {
  life_ = Life::kEnded;
  ended_at_ = clock_.MonotonicNow();
}

void ShimProcess::SignalWorkerGroup(int signal) {
  // The group keeps its number from being used again while it has members; a new process with that pid means that the
  // group is gone.
  const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(shim_->worker.pid);
  if (now.ok() && *now != shim_->worker) return;
  ::kill(-shim_->worker.pid, signal);
}

void ShimProcess::Terminate() {
  if (life_ != Life::kAlive || terminated_at_.has_value()) return;
  if (!shim_.has_value()) return;  // it has no worker to tell yet; we are called again
  terminated_at_ = clock_.MonotonicNow();
  if (killed_ == KillReason::kNone && IsRunning(shim_->worker)) killed_ = KillReason::kAsked;
  if (const absl::Status status = SignalProcess(shim_->shim, SIGTERM); !status.ok() && !absl::IsNotFound(status)) {
    spdlog::warn("{}: {}", state_dir_, status.ToString());
  }
}

void ShimProcess::Kill(KillReason reason) {
  const absl::Duration now = clock_.MonotonicNow();
  if (life_ != Life::kAlive || now - last_kill_at_ < kKillInterval) return;
  last_kill_at_ = now;
  if (!first_kill_at_.has_value()) first_kill_at_ = now;
  if (!shim_.has_value()) ReadShimRecord();
  if (shim_.has_value()) {
    // A worker that is dead already ended for its own reason.
    if (killed_ == KillReason::kNone && IsRunning(shim_->worker)) killed_ = reason;
    SignalWorkerGroup(SIGKILL);
    if (now - *first_kill_at_ >= kKillShimAfter) (void)SignalProcess(shim_->shim, SIGKILL);
  } else if (child_.has_value()) {
    if (killed_ == KillReason::kNone) killed_ = reason;
    (void)child_->SignalGroup(SIGKILL);  // the worker, if there is one by now, dies with it
  }
}

}  // namespace slipway::worker::agent
