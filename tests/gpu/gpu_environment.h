// What a GPU test needs before its first tensor: the CUDA plug-in, loaded from SLIPWAY_LIB_DIR. Including this file
// makes a test binary do so; without a GPU or the plug-in it fails.
#ifndef SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_
#define SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_

#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace slipway::testing {

class GpuEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* directory = std::getenv("SLIPWAY_LIB_DIR");
    const std::string path = std::string(directory != nullptr ? directory : "lib") + "/libslipway_cuda.so";
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    ASSERT_TRUE(at::globalContext().hasCUDA()) << "no CUDA device";
    plugin_ = handle;
  }
  static void* plugin() { return plugin_; }

 private:
  static inline void* plugin_ = nullptr;
};

inline const auto* const kGpuEnvironment = ::testing::AddGlobalTestEnvironment(new GpuEnvironment);

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_GPU_GPU_ENVIRONMENT_H_
