// What the model commands share on the command line. Internal to this folder.
#ifndef SLIPWAY_WORKER_HOST_COMMAND_LINE_H_
#define SLIPWAY_WORKER_HOST_COMMAND_LINE_H_

#include <CLI/App.hpp>

#include "absl/status/status.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {

void AddComputeFlags(CLI::App& app, ComputeOptions& options);

// 0, or 1 with the error on stderr.
int ExitCode(const absl::Status& status);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_COMMAND_LINE_H_
