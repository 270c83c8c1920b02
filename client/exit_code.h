// What `slipway` exits with, beyond common/exit_code.h. Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_EXIT_CODE_H_
#define SLIPWAY_CLIENT_EXIT_CODE_H_

#include <string>

#include "common/exit_code.h"
#include "slipway/v1/job.pb.h"

namespace slipway::client {

using slipway::ExitCodeOf;
// Of a job that has ended; kExitOk for any other state.
int ExitCodeOf(v1::JobState state);

// The table for --help.
std::string ExitCodeHelp();

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_EXIT_CODE_H_
