// `slipway-worker run --launch FILE`: one rank of an attempt, started by its shim.
#ifndef SLIPWAY_WORKER_HOST_RUN_COMMAND_H_
#define SLIPWAY_WORKER_HOST_RUN_COMMAND_H_

#include <string>

namespace slipway::worker::host {

// Returns the process's exit code: 0 when the rank completed or stopped as asked. Leaves an outcome file in every case
// that it lives to see. The caller ends the process with _exit: a broken group cannot be destroyed without waiting.
int RunCommand(const std::string& launch_file);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_RUN_COMMAND_H_
