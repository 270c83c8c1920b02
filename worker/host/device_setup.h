// The worker's first moments: threads, the CUDA plug-in. Must run before anything touches torch's CUDA side.
#ifndef SLIPWAY_WORKER_HOST_DEVICE_SETUP_H_
#define SLIPWAY_WORKER_HOST_DEVICE_SETUP_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"

namespace slipway::worker::host {

// Sets the number of CPU threads of this process and of those that it starts. First thing in main.
void SetThreads(int threads);

// "cpu" or "cuda:N" → the device, ready to use. For CUDA loads libslipway_cuda.so (beside the binary in ../lib, or
// SLIPWAY_CUDA_PLUGIN) and makes NCCL known. FailedPrecondition when the plug-in cannot be loaded, with the loader's
// words.
absl::StatusOr<at::Device> OpenDevice(const std::string& device);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_DEVICE_SETUP_H_
