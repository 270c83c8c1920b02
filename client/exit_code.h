// What `slipway` exits with; documented in docs/cli.md and in --help. Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_EXIT_CODE_H_
#define SLIPWAY_CLIENT_EXIT_CODE_H_

#include <string>

#include "absl/status/status.h"
#include "slipway/v1/job.pb.h"

namespace slipway::client {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,  // wrong arguments, or a job that is not valid
  kExitNotFound = 3,
  kExitDenied = 4,
  kExitConflict = 5,     // the job's state does not allow it, or somebody else was faster
  kExitUnavailable = 6,  // no server, or no answer in time
  kExitExhausted = 7,    // a quota or a limit
  kExitJobFailed = 8,
  kExitJobCancelled = 9,
  kExitInterrupted = 130
};

int ExitCodeOf(const absl::Status& status);
// Of a job that has ended; kExitOk for any other state.
int ExitCodeOf(v1::JobState state);

// The table for --help.
std::string ExitCodeHelp();

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_EXIT_CODE_H_
