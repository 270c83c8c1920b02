// One process under its shim, as the agent sees it: started here or found again after the agent's own death. All
// knowledge lies in the state directory (worker/link/rank_files.h), so an object can be made anew at any time.
// Not thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_SHIM_PROCESS_H_
#define SLIPWAY_WORKER_AGENT_SHIM_PROCESS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/subprocess.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/agent/reconciler.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::agent {

class ShimProcess {
 public:
  static constexpr int kRendezvousFd = 3;  // the number of the passed socket in the shim and in the worker

  struct StartOptions {
    std::string shim_binary;
    std::vector<std::string> command;      // the worker's
    std::vector<std::string> environment;  // "NAME=value"
    std::string log_path;
    int rendezvous_fd = -1;  // goes to the worker; the caller closes its own copy afterwards
  };

  // Looks at what lies in `state_dir`: absent when the directory does not exist. `files` and `clock` must outlive it.
  ShimProcess(std::string state_dir, FileSystem& files, const Clock& clock);

  // Makes the directory, writes the launch file and starts the shim. Only when absent. After an error the process
  // counts as ended, with an exit record that says so.
  absl::Status Start(const slipway::worker::v1::WorkerLaunch& launch, const StartOptions& options);

  // Instead of Start: the process counts as ended, for this reason.
  void RefuseToStart(const absl::Status& reason);

  // Notices what has happened since the last call.
  void Poll();

  Life life() const { return life_; }
  // SIGTERM to the worker's process group, through the shim. Once.
  void Terminate();
  // SIGKILL to the worker's process group, and when that does not help to the shim. Repeat until the life has ended.
  void Kill(KillReason reason);

  // Why we killed it; kNone when it was dead already or nobody did.
  KillReason killed() const { return killed_; }
  std::optional<absl::Duration> terminated_at() const { return terminated_at_; }
  absl::Duration started_at() const { return started_at_; }

  // After its end.
  absl::Duration ended_at() const { return ended_at_; }
  const std::optional<slipway::worker::v1::ExitRecord>& record() const { return record_; }
  bool machine_restarted() const { return machine_restarted_; }
  const std::string& shim_error() const { return shim_error_; }

  // 0 until it is known.
  pid_t worker_pid() const { return shim_.has_value() ? shim_->worker.pid : 0; }
  const std::string& state_dir() const { return state_dir_; }

 private:
  absl::Status Spawn(const StartOptions& options);
  void ReadShimRecord();
  void ReapShim();
  bool ShimLives();
  // The shim never started a worker and never will: says so in its place.
  void RecordNeverStarted();
  void RecordSpawnFailure(const std::string& reason);
  void End();
  void SignalWorkerGroup(int signal);

  const std::string state_dir_;
  FileSystem& files_;
  const Clock& clock_;
  Life life_ = Life::kAbsent;
  std::optional<Subprocess> child_;  // the shim, when this agent started it and has not reaped it
  std::optional<link::ShimRecord> shim_;
  absl::Duration started_at_;
  std::optional<absl::Duration> terminated_at_;
  std::optional<absl::Duration> first_kill_at_;
  absl::Duration last_kill_at_ = -absl::InfiniteDuration();
  KillReason killed_ = KillReason::kNone;
  absl::Duration ended_at_;
  bool machine_restarted_ = false;
  std::string shim_error_;
  std::optional<slipway::worker::v1::ExitRecord> record_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_SHIM_PROCESS_H_
