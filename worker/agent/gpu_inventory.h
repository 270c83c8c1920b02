// The GPUs of this machine, asked of NVIDIA's management library. Its calls may hang for ever on sick hardware, so they
// are made in a child process with a deadline. Thread-safe: no state.
#ifndef SLIPWAY_WORKER_AGENT_GPU_INVENTORY_H_
#define SLIPWAY_WORKER_AGENT_GPU_INVENTORY_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "slipway/v1/node.pb.h"

namespace slipway::worker::agent {

// Runs `command` (this program with the flag below) and reads its answer. Empty when the machine has no NVIDIA driver;
// DeadlineExceeded when the driver does not answer.
absl::StatusOr<std::vector<slipway::v1::Slot>> ProbeGpus(const std::vector<std::string>& command,
                                                         absl::Duration deadline);
inline constexpr std::string_view kProbeFlag = "--probe-gpus";

// In the child: asks the library and prints one JSON array; returns the exit code.
int PrintGpus();

// The GPUs that CUDA_VISIBLE_DEVICES (by number or UUID, as CUDA reads it) leaves, in its order, numbered from 0.
std::vector<slipway::v1::Slot> KeepVisible(std::vector<slipway::v1::Slot> gpus, const char* cuda_visible_devices);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_GPU_INVENTORY_H_
