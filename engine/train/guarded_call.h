// The border between exceptions and Status: LibTorch, c10d, NCCL and Gloo throw; everything above the trainer speaks
// Status. Only engine/train uses it.
#ifndef SLIPWAY_ENGINE_TRAIN_GUARDED_CALL_H_
#define SLIPWAY_ENGINE_TRAIN_GUARDED_CALL_H_

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::engine::train {

// What a fault is to the coordinator travels with the Status under this payload: the name of a slipway.v1.CauseClass,
// without its prefix, e.g. "OOM" or "NETWORK".
inline constexpr char kCausePayload[] = "slipway.dev/cause-class";

absl::Status WithCause(absl::Status status, std::string_view cause_class);

// The Status of the exception in flight: out of memory, a communication error (NETWORK), or an internal one. The first
// line of the message is kept; LibTorch's backtraces are not.
absl::Status StatusFromException(std::string_view what);

template <typename F>
auto Guarded(std::string_view what, F&& f) -> std::invoke_result_t<F> {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    return StatusFromException(what);
  }
}

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_GUARDED_CALL_H_
