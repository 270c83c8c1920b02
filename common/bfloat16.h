// Conversions between the floating-point formats of stored tensors, on bytes: round to nearest even, NaN stays NaN, and
// what no longer fits becomes infinity and is counted. Thread-safe: pure functions.
#ifndef SLIPWAY_COMMON_BFLOAT16_H_
#define SLIPWAY_COMMON_BFLOAT16_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"

namespace slipway {

inline float FloatFromBFloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A NaN whose payload lies in the low bits alone would turn into infinity; setting the quiet bit keeps it a NaN.
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float FloatFromFloat16(uint16_t bits);
uint16_t Float16FromFloat(float value);

// Elements that were finite and became infinite, e.g. above 65504 in float16.
struct CastReport {
  int64_t overflows = 0;
};

// Converts all elements of `from` into `to` and adds to *report. The buffers need no alignment and must not overlap.
// InvalidArgument when the sizes disagree, or when the types differ and one of them is not a floating-point type
// (integers are never converted).
absl::Status CastElements(absl::Span<const std::byte> from, DType from_type, absl::Span<std::byte> to, DType to_type,
                          CastReport* report);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_BFLOAT16_H_
