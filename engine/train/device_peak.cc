#include "engine/train/device_peak.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace slipway::engine::train {
namespace {

// Dense bf16 TFLOP/s from the makers' data sheets, by a part of the device's name; longer names first.
constexpr std::array<std::pair<std::string_view, double>, 11> kBf16Teraflops = {{
    {"H100 PCIe", 756},
    {"H100 NVL", 835},
    {"GH200", 989},
    {"H200", 989},
    {"H100", 989},
    {"B200", 2250},
    {"A100", 312},
    {"L40S", 362},
    {"A40", 150},
    {"L4", 121},
    {"A10", 125},
}};

// nvmlDeviceGetName is not reachable from here; the runtime's properties are, through the library that torch has
// loaded.
std::string DeviceName(int index) {
  using Fn = int (*)(void*, int);
  void* symbol = ::dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties");
  if (symbol == nullptr) return "";
  // cudaDeviceProp begins with char name[256]; the rest is far smaller than this buffer.
  alignas(16) std::array<char, 8192> properties{};
  if (reinterpret_cast<Fn>(symbol)(properties.data(), index) != 0) return "";
  return std::string(properties.data());
}

}  // namespace

double DevicePeakFlops(at::Device device, at::ScalarType compute_type) {
  if (!device.is_cuda() || compute_type != at::kBFloat16) return 0;
  const std::string name = DeviceName(device.has_index() ? device.index() : 0);
  for (const auto& [part, teraflops] : kBf16Teraflops) {
    if (name.find(part) != std::string::npos) return teraflops * 1e12;
  }
  return 0;
}

}  // namespace slipway::engine::train
