#include "worker/host/device_setup.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "absl/strings/match.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/comm/backend_registry.h"

namespace slipway::worker::host {
namespace {

std::string PluginPath() {
  if (const char* path = std::getenv("SLIPWAY_CUDA_PLUGIN"); path != nullptr && *path != '\0') return path;
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof(self));
  const std::string binary(self, length > 0 ? static_cast<size_t>(length) : 0);
  return JoinPath(DirName(DirName(binary)), "lib/libslipway_cuda.so");
}

}  // namespace

void SetThreads(int threads) {
  if (threads > 0) at::set_num_threads(threads);
}

absl::StatusOr<at::Device> OpenDevice(const std::string& device) {
  if (device == "cpu") return at::Device(at::kCPU);
  if (!absl::StartsWith(device, "cuda")) {
    return absl::InvalidArgumentError(absl::StrCat("device '", device, "': expected cpu or cuda:N"));
  }
  const std::string path = PluginPath();
  // Never closed: its operators stay registered.
  void* plugin = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the CUDA plug-in cannot be loaded: ", ::dlerror()));
  }
  SLIPWAY_RETURN_IF_ERROR(engine::comm::RegisterPluginBackends(plugin));
  if (!at::globalContext().hasCUDA()) return absl::FailedPreconditionError("LibTorch finds no CUDA device");
  return at::Device(device);
}

}  // namespace slipway::worker::host
