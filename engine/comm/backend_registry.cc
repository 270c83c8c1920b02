#include "engine/comm/backend_registry.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slipway::engine::comm {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, BackendFactory> factories;
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;  // never destroyed: plug-ins stay loaded to the end
  return *registry;
}

}  // namespace

void RegisterBackendFactory(const std::string& backend, BackendFactory factory) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  registry.factories[backend] = factory;
}

absl::StatusOr<BackendFactory> FindBackendFactory(const std::string& backend) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.factories.find(backend);
  if (found != registry.factories.end()) return found->second;
  std::string known = "gloo";
  for (const auto& [name, factory] : registry.factories) absl::StrAppend(&known, ", ", name);
  return absl::NotFoundError(absl::StrCat("communication backend '", backend, "' is not known; there are: ", known));
}

absl::Status RegisterPluginBackends(void* plugin_handle) {
  void* const symbol = ::dlsym(plugin_handle, kNcclFactorySymbol);
  if (symbol == nullptr) {
    return absl::NotFoundError(absl::StrCat("the CUDA library has no symbol ", kNcclFactorySymbol));
  }
  RegisterBackendFactory("nccl", reinterpret_cast<BackendFactory>(symbol));
  return absl::OkStatus();
}

}  // namespace slipway::engine::comm
