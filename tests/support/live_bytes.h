// How many bytes of tensors on the CPU a thread has allocated and not freed.
//
//   LiveBytes live;
//   at::Tensor out = Forward(x);
//   EXPECT_LT(live.now(), ...);
//
// Counts what the thread that made it allocates and frees; memory that another thread frees stays counted.
#ifndef SLIPWAY_TESTS_SUPPORT_LIVE_BYTES_H_
#define SLIPWAY_TESTS_SUPPORT_LIVE_BYTES_H_

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace slipway::testing {

class LiveBytes {
 public:
  LiveBytes() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  int64_t now() const { return counter_->bytes; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_LIVE_BYTES_H_
