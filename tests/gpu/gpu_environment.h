// What a GPU test needs before its first tensor: the CUDA plug-in, loaded from SLIPWAY_LIB_DIR. Including this file
// makes a test binary do so; without a GPU or the plug-in it fails. A rank process, which runs no tests, calls
// LoadGpuPlugin itself.
#ifndef SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_
#define SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_

#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace slipway::testing {

// The plug-in's handle; null, with the reason on stderr, when it cannot be loaded or there is no GPU.
inline void* LoadGpuPlugin() {
  const char* directory = std::getenv("SLIPWAY_LIB_DIR");
  const std::string path = std::string(directory != nullptr ? directory : "lib") + "/libslipway_cuda.so";
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return nullptr;
  }
  if (!at::globalContext().hasCUDA()) {
    std::fprintf(stderr, "no CUDA device\n");
    return nullptr;
  }
  return handle;
}

class GpuEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { ASSERT_NE(LoadGpuPlugin(), nullptr); }
};

inline const auto* const kGpuEnvironment = ::testing::AddGlobalTestEnvironment(new GpuEnvironment);

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_
