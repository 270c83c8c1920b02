// Collective libraries that are not part of this binary: NCCL lives in the CUDA plug-in, because its c10d backend lives
// in libtorch_cuda.so. After the plug-in is loaded, RegisterPluginBackends(handle) makes "nccl" known here.
// Thread-safety: register before the first group is made; FindBackend from any thread after that.
#ifndef SLIPWAY_ENGINE_COMM_BACKEND_REGISTRY_H_
#define SLIPWAY_ENGINE_COMM_BACKEND_REGISTRY_H_

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::engine::comm {

// Everything that a backend needs to make one group.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  // with a prefix of this group alone
  int group_rank = 0;
  int group_size = 1;
  std::string name;
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout{0};
};

// Throws what the library throws.
using BackendFactory = void (*)(const BackendRequest& request, c10::intrusive_ptr<c10d::Backend>& backend);

// What a plug-in exports, with C linkage, for NCCL.
inline constexpr char kNcclFactorySymbol[] = "slipway_make_nccl_backend";

void RegisterBackendFactory(const std::string& backend, BackendFactory factory);
// NotFound naming the backends that are known.
absl::StatusOr<BackendFactory> FindBackendFactory(const std::string& backend);
// Looks kNcclFactorySymbol up in a library opened by dlopen. NotFound when it is not there.
absl::Status RegisterPluginBackends(void* plugin_handle);

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_BACKEND_REGISTRY_H_
