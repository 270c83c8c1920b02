#include "worker/agent/gpu_inventory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"

namespace slipway::worker::agent {
namespace {

// The few declarations that we need of nvml.h (NVIDIA Management Library API, stable since R270).
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  bool Load() {
    library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library_ != nullptr && Find("nvmlInit_v2", init_) && Find("nvmlDeviceGetCount_v2", count_) &&
           Find("nvmlDeviceGetHandleByIndex_v2", by_index_) && Find("nvmlDeviceGetName", name_) &&
           Find("nvmlDeviceGetUUID", uuid_) && Find("nvmlDeviceGetMemoryInfo", memory_) && init_() == 0;
  }

  nlohmann::json List() {
    nlohmann::json gpus = nlohmann::json::array();
    unsigned count = 0;
    if (count_(&count) != 0) return gpus;
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      std::array<char, 96> name = {}, uuid = {};
      NvmlMemory memory = {};
      if (by_index_(i, &device) != 0 || name_(device, name.data(), name.size()) != 0 ||
          uuid_(device, uuid.data(), uuid.size()) != 0 || memory_(device, &memory) != 0) {
        continue;  // fell off the bus
      }
      gpus.push_back({{"name", name.data()}, {"uuid", uuid.data()}, {"memory", memory.total}});
    }
    return gpus;
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    return function != nullptr;
  }

  void* library_ = nullptr;
  int (*init_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*by_index_)(unsigned, NvmlDevice*) = nullptr;
  int (*name_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*uuid_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
};

// All that comes before the end of the output or the deadline.
std::string ReadUntil(int fd, absl::Time deadline) {
  std::string text;
  std::array<char, 4096> chunk;
  while (absl::Now() < deadline) {
    pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (::poll(&poll_fd, 1, 100) <= 0) continue;
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n <= 0) break;
    text.append(chunk.data(), static_cast<size_t>(n));
  }
  return text;
}

absl::StatusOr<std::vector<slipway::v1::Slot>> Parse(const std::string& text) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return absl::InternalError(absl::StrCat("the GPU probe printed no list: ", text));
  std::vector<slipway::v1::Slot> slots;
  for (const nlohmann::json& gpu : list) {
    slipway::v1::Slot slot;
    slot.set_index(static_cast<int>(slots.size()));
    slot.set_kind(slipway::v1::DEVICE_KIND_CUDA);
    slot.set_device_name(gpu.value("name", ""));
    slot.set_device_uuid(gpu.value("uuid", ""));
    slot.set_memory_bytes(static_cast<int64_t>(gpu.value("memory", uint64_t{0})));
    slots.push_back(std::move(slot));
  }
  return slots;
}

}  // namespace

int PrintGpus() {
  Nvml nvml;
  const std::string text = nvml.Load() ? nvml.List().dump() : "[]";
  std::fputs(text.c_str(), stdout);
  return 0;
}

absl::StatusOr<std::vector<slipway::v1::Slot>> ProbeGpus(const std::vector<std::string>& command,
                                                         absl::Duration deadline) {
  std::array<int, 2> pipe_fds;
  if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0) return ErrnoToStatus(errno, "making a pipe");
  const UniqueFd output(pipe_fds[0]);
  UniqueFd input(pipe_fds[1]);
  SLIPWAY_ASSIGN_OR_RETURN(Subprocess child, Subprocess::Spawn({.argv = command, .stdout_fd = input.get()}));
  input.reset();
  const absl::Time end = absl::Now() + deadline;
  const std::string text = ReadUntil(output.get(), end);
  const absl::StatusOr<ExitStatus> status = child.Wait(std::max(end - absl::Now(), absl::ZeroDuration()));
  if (!status.ok()) {
    (void)child.Signal(SIGKILL);
    // A process that hangs in a driver cannot be killed; it is left to the kernel.
    (void)child.Wait(absl::Seconds(1));
    return absl::DeadlineExceededError(
        absl::StrCat("the GPU driver did not answer within ", absl::FormatDuration(deadline)));
  }
  if (!status->success()) return absl::InternalError(absl::StrCat("the GPU probe failed: ", status->ToString()));
  return Parse(text);
}

std::vector<slipway::v1::Slot> KeepVisible(std::vector<slipway::v1::Slot> gpus, const char* cuda_visible_devices) {
  if (cuda_visible_devices == nullptr) return gpus;
  std::vector<slipway::v1::Slot> kept;
  for (const absl::string_view part : absl::StrSplit(cuda_visible_devices, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    int number = -1;
    const slipway::v1::Slot* found = nullptr;
    for (const slipway::v1::Slot& gpu : gpus) {
      const bool by_number = absl::SimpleAtoi(name, &number) && gpu.index() == number;
      if (by_number || (!name.empty() && absl::StartsWith(gpu.device_uuid(), name))) found = &gpu;
    }
    if (found == nullptr) break;  // CUDA stops at the first name that it does not know
    kept.push_back(*found);
    kept.back().set_index(static_cast<int>(kept.size()) - 1);
  }
  return kept;
}

}  // namespace slipway::worker::agent
