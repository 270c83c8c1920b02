// `slipway-worker preflight --launch FILE`: opens and checks everything that a job needs, without training, so that a
// fault shows before the job takes its slots.
#ifndef SLIPWAY_WORKER_HOST_PREFLIGHT_COMMAND_H_
#define SLIPWAY_WORKER_HOST_PREFLIGHT_COMMAND_H_

#include <string>

#include "common/file_system.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/worker/v1/worker.pb.h"

namespace slipway::worker::host {

// All faults that there are, and what the data holds.
slipway::v1::PreflightResult Preflight(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch);

// Writes preflight.pb into the launch's state directory. 0 also when faults were found.
int PreflightCommand(const std::string& launch_file);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_PREFLIGHT_COMMAND_H_
