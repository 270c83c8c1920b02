// The files in a rank's state directory, through which worker, shim and agent speak to each other when a process or the
// socket between them is gone. All are written atomically. Thread-safe: no state; one writer a file.
//
//   launch      WorkerLaunch   the agent, before the start
//   shim.json   ShimRecord     the shim, once its worker runs
//   shim.lock   flock          the shim, as long as it lives
//   report      WorkerReport   the worker's WorkerLink: the latest, without metrics
//   outcome     WorkerOutcome  the worker, just before it leaves
//   exit        ExitRecord     the shim, after its worker has ended
//   collective  CollectiveBoard
//   preflight.pb PreflightResult  `slipway-worker preflight`
#ifndef SLIPWAY_WORKER_LINK_RANK_FILES_H_
#define SLIPWAY_WORKER_LINK_RANK_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "common/subprocess.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/worker/v1/worker.pb.h"

namespace slipway::worker::link {

inline constexpr std::string_view kLaunchFile = "launch";
inline constexpr std::string_view kShimFile = "shim.json";
inline constexpr std::string_view kShimLockFile = "shim.lock";
inline constexpr std::string_view kReportFile = "report";
inline constexpr std::string_view kOutcomeFile = "outcome";
inline constexpr std::string_view kExitFile = "exit";
inline constexpr std::string_view kCollectiveFile = "collective";
inline constexpr std::string_view kPreflightFile = "preflight.pb";

// `slipway-worker run --launch FILE`: one rank of an attempt. Ends with exit code 0 and an outcome file of COMPLETED or
// STOPPED, or with another code and, where it can, an outcome file of FAULT with its cause.
std::vector<std::string> RankCommand(const std::string& worker_binary, const std::string& launch_file);
// `slipway-worker preflight --launch FILE`: checks the launch's spec, writes preflight.pb into the launch's state_dir
// and ends with exit code 0, also when it found faults.
std::vector<std::string> PreflightCommand(const std::string& worker_binary, const std::string& launch_file);

// A cause's message as it may travel: at most 8 KiB, the middle left out.
inline constexpr size_t kMaxCauseMessageBytes = 8192;
std::string ShortenCauseMessage(std::string_view message);

// Reading: NotFound when the file is not there, DataLoss when it cannot be parsed; both name the path.
absl::Status WriteLaunch(FileSystem& files, const std::string& path, const slipway::worker::v1::WorkerLaunch& launch);
absl::StatusOr<slipway::worker::v1::WorkerLaunch> ReadLaunch(FileSystem& files, const std::string& path);

absl::Status WriteOutcome(FileSystem& files, const std::string& state_dir,
                          const slipway::worker::v1::WorkerOutcome& outcome);
absl::StatusOr<slipway::worker::v1::WorkerOutcome> ReadOutcome(FileSystem& files, const std::string& state_dir);

absl::Status WriteExitRecord(FileSystem& files, const std::string& state_dir,
                             const slipway::worker::v1::ExitRecord& record);
absl::StatusOr<slipway::worker::v1::ExitRecord> ReadExitRecord(FileSystem& files, const std::string& state_dir);

absl::Status WriteReport(FileSystem& files, const std::string& state_dir,
                         const slipway::worker::v1::WorkerReport& report);
absl::StatusOr<slipway::worker::v1::WorkerReport> ReadReport(FileSystem& files, const std::string& state_dir);

absl::Status WritePreflightResult(FileSystem& files, const std::string& state_dir,
                                  const slipway::v1::PreflightResult& result);
absl::StatusOr<slipway::v1::PreflightResult> ReadPreflightResult(FileSystem& files, const std::string& state_dir);

// Who runs a rank. The worker leads its own process group, whose number is its pid.
struct ShimRecord {
  ProcessIdentity shim;
  ProcessIdentity worker;
};
absl::Status WriteShimRecord(FileSystem& files, const std::string& state_dir, const ShimRecord& record);
// FailedPrecondition when the machine has been started anew since: the numbers then mean nothing.
absl::StatusOr<ShimRecord> ReadShimRecord(FileSystem& files, const std::string& state_dir);

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_RANK_FILES_H_
