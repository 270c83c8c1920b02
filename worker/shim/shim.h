// The parent of one worker. It lives in a session of its own, so that neither the agent's death nor a terminal touches
// it; it drains the worker's output to log files, waits, and writes the exit record. The worker dies with it.
#ifndef SLIPWAY_WORKER_SHIM_SHIM_H_
#define SLIPWAY_WORKER_SHIM_SHIM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace slipway::worker::shim {

struct ShimOptions {
  std::string state_dir;  // the rank's, see worker/link/rank_files.h; must exist
  std::string log_path;   // empty: output.log in the state directory
  int64_t log_file_bytes = int64_t{64} << 20;
  int log_files = 4;
  int rendezvous_fd = -1;            // passed to the worker under the same number; -1: none
  std::vector<std::string> command;  // command[0] is a path
};

// Runs the worker to its end. Must be called from a process with one thread: it changes signal masks and session.
// OK when an exit record lies in the state directory, also for a worker that failed or could not be started.
// FailedPrecondition when another shim serves the directory or a worker has already run there: a rank's directory is
// used once.
absl::Status RunShim(const ShimOptions& options);

}  // namespace slipway::worker::shim

#endif  // SLIPWAY_WORKER_SHIM_SHIM_H_
