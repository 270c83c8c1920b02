// What `slipway`, and `slipway-worker` on its behalf, exit with; documented in docs/cli.md. Thread-safe: pure
// functions.
#ifndef SLIPWAY_COMMON_EXIT_CODE_H_
#define SLIPWAY_COMMON_EXIT_CODE_H_

#include "absl/status/status.h"

namespace slipway {

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
  kExitInterrupted = 130,
  kExitReaderGone = 141  // as a shell reports a program that SIGPIPE ended
};

int ExitCodeOf(const absl::Status& status);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_EXIT_CODE_H_
