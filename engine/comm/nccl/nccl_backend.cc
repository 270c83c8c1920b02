// The NCCL half of engine/comm, compiled into the CUDA plug-in: c10d's NCCL backend lives in libtorch_cuda.so.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

#include "engine/comm/backend_registry.h"

namespace slipway::engine::comm {
namespace {

// Set explicitly, so that a change of c10d's defaults does not change what a fault does to a worker: the watchdog ends
// the process after a failed or timed out operation (an abort of NCCL may hang), and waits do not block the host. What
// the operator has set stands.
void SetErrorHandling() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
}

}  // namespace
}  // namespace slipway::engine::comm

extern "C" __attribute__((visibility("default"))) void slipway_make_nccl_backend(
    const slipway::engine::comm::BackendRequest& request, c10::intrusive_ptr<c10d::Backend>& backend) {
  slipway::engine::comm::SetErrorHandling();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  options->group_name = request.name;
  options->group_desc = request.name;
  backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.group_rank, request.group_size, options);
}
