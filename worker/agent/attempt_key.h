// What names an attempt, and where a node keeps what it knows of it:
//
//   <state dir>/attempts/<job>/e<epoch>/assignment       the last DesiredAssignment
//                                      /rendezvous       this node's rendezvous address, once bound
//                                      /preflight/       state directory of the preflight's shim
//                                      /r<rank>/         state directory of a rank's shim (worker/link/rank_files.h)
//
// A rank's directory is made just before its process is started and never used twice: at most one process of a rank and
// epoch ever runs here, whatever dies in between. Thread-safe: no state.
#ifndef SLIPWAY_WORKER_AGENT_ATTEMPT_KEY_H_
#define SLIPWAY_WORKER_AGENT_ATTEMPT_KEY_H_

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"

namespace slipway::worker::agent {

struct AttemptKey {
  std::string job_id;
  int64_t epoch = 0;

  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;
};

std::string ToText(const AttemptKey& key);  // "job-7/e3"

// A job id becomes a directory's name: 1 to 128 letters, digits, '-', '_' and '.', not starting with '.'.
absl::Status ValidateJobId(std::string_view job_id);

std::string AttemptDirectory(const std::string& state_dir, const AttemptKey& key);
std::string RankDirectory(const std::string& attempt_dir, int rank);
std::string PreflightDirectory(const std::string& attempt_dir);
// Where a rank's output goes; it outlives the attempt's directory.
std::string LogPath(const std::string& output_dir, int64_t epoch, int rank);

// Attempts that an earlier agent left in the state directory, and the ranks of one.
absl::StatusOr<std::vector<AttemptKey>> ListAttempts(FileSystem& files, const std::string& state_dir);
absl::StatusOr<std::vector<int>> ListRanks(FileSystem& files, const std::string& attempt_dir);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_ATTEMPT_KEY_H_
