#include "common/bfloat16.h"

#include <cmath>
#include <cstring>

#include "common/str_cat.h"

namespace slipway {
namespace {

template <DType kType>
struct Element;
template <>
struct Element<DType::kFloat64> {
  using Stored = double;
  static double Load(double stored) { return stored; }
  static double Store(double value) { return value; }
};
template <>
struct Element<DType::kFloat32> {
  using Stored = float;
  static double Load(float stored) { return stored; }
  static float Store(double value) { return static_cast<float>(value); }
};

// From double to a 16-bit format by way of float would round twice. Rounding the first step to odd keeps what the
// second one needs to know.
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || std::isinf(nearest) || static_cast<double>(nearest) == value) {
    return std::isinf(nearest) && !std::isinf(value) ? std::nextafterf(nearest, 0.0f) : nearest;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  // `nearest` is even and inexact: the odd neighbour on the other side of `value` is the right one.
  return std::nextafterf(nearest, static_cast<double>(nearest) < value ? INFINITY : -INFINITY);
}

template <>
struct Element<DType::kBFloat16> {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return FloatFromBFloat16(stored); }
  static uint16_t Store(double value) { return BFloat16FromFloat(RoundToOdd(value)); }
};
template <>
struct Element<DType::kFloat16> {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return FloatFromFloat16(stored); }
  static uint16_t Store(double value) { return Float16FromFloat(RoundToOdd(value)); }
};

// A signalling NaN may lose its quiet bit's neighbour on the way through double, never its being a NaN.
template <DType kFrom, DType kTo>
int64_t CastLoop(const std::byte* from, std::byte* to, size_t count) {
  using From = typename Element<kFrom>::Stored;
  using To = typename Element<kTo>::Stored;
  int64_t overflows = 0;
  for (size_t i = 0; i < count; ++i) {
    From stored;
    std::memcpy(&stored, from + i * sizeof(From), sizeof(From));
    const double value = Element<kFrom>::Load(stored);
    const To result = Element<kTo>::Store(value);
    overflows += std::isinf(Element<kTo>::Load(result)) && !std::isinf(value);
    std::memcpy(to + i * sizeof(To), &result, sizeof(To));
  }
  return overflows;
}

using Loop = int64_t (*)(const std::byte*, std::byte*, size_t);

template <DType kFrom>
Loop LoopFrom(DType to) {
  switch (to) {
    case DType::kFloat64:
      return &CastLoop<kFrom, DType::kFloat64>;
    case DType::kFloat32:
      return &CastLoop<kFrom, DType::kFloat32>;
    case DType::kBFloat16:
      return &CastLoop<kFrom, DType::kBFloat16>;
    case DType::kFloat16:
      return &CastLoop<kFrom, DType::kFloat16>;
    default:
      return nullptr;
  }
}

Loop LoopFor(DType from, DType to) {
  switch (from) {
    case DType::kFloat64:
      return LoopFrom<DType::kFloat64>(to);
    case DType::kFloat32:
      return LoopFrom<DType::kFloat32>(to);
    case DType::kBFloat16:
      return LoopFrom<DType::kBFloat16>(to);
    case DType::kFloat16:
      return LoopFrom<DType::kFloat16>(to);
    default:
      return nullptr;
  }
}

}  // namespace

float FloatFromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal, exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t Float16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: the result's unit is 2^-24. Adding 0.5 (whose own unit is 2^-24) makes the hardware round there.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

absl::Status CastElements(absl::Span<const std::byte> from, DType from_type, absl::Span<std::byte> to, DType to_type,
                          CastReport* report) {
  const size_t from_size = static_cast<size_t>(DTypeSize(from_type));
  const size_t to_size = static_cast<size_t>(DTypeSize(to_type));
  const size_t count = from.size() / from_size;
  if (from.size() % from_size != 0 || to.size() != count * to_size) {
    return absl::InvalidArgumentError(StrCat("cannot convert ", from.size(), " bytes of ", DTypeName(from_type),
                                             " into ", to.size(), " bytes of ", DTypeName(to_type)));
  }
  if (from_type == to_type) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return absl::OkStatus();
  }
  const Loop loop = LoopFor(from_type, to_type);
  if (loop == nullptr) {
    return absl::InvalidArgumentError(StrCat("cannot convert ", DTypeName(from_type), " to ", DTypeName(to_type),
                                             ": only floating-point tensors are converted"));
  }
  report->overflows += loop(from.data(), to.data(), count);
  return absl::OkStatus();
}

}  // namespace slipway
