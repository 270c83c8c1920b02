#include "common/bfloat16.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/status_matchers.h"

namespace slipway {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

float F32(uint32_t bits) { return std::bit_cast<float>(bits); }

// The nearest value of a 16-bit format by search over all of them; ties go to the even pattern.
template <typename Decode>
uint16_t NearestBySearch(double value, uint16_t largest_finite, double overflow_at, Decode decode) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= overflow_at) return static_cast<uint16_t>(sign | (largest_finite + 1));
  uint16_t low = 0, high = largest_finite;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - static_cast<double>(decode(low)),
               above = static_cast<double>(decode(high)) - magnitude;
  const bool take_low = below < above || (below == above && low % 2 == 0);
  return static_cast<uint16_t>(sign | (take_low ? low : high));
}

std::vector<float> InterestingFloats() {
  std::vector<float> values;
  uint32_t state = 12345;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(F32(state));                                    // anything
    values.push_back(F32(0x33000000u + (state >> 8) % 0x14900000));  // around float16's range
    values.push_back(F32((state & 0xFFFF0000u) | 0x8000u));          // ties of bfloat16
    values.push_back(F32((state & 0xFFFFE000u) | 0x1000u));          // ties of float16
  }
  std::erase_if(values, [](float v) { return std::isnan(v); });
  return values;
}

TEST(BFloat16Test, RoundsToNearestEven) {
  for (const float value : InterestingFloats()) {
    if (std::isinf(value)) continue;
    const double overflow_at = static_cast<double>(FloatFromBFloat16(0x7F7F)) + 0x1p119;
    EXPECT_EQ(BFloat16FromFloat(value), NearestBySearch(value, 0x7F7F, overflow_at, FloatFromBFloat16)) << value;
  }
}

TEST(Float16Test, RoundsToNearestEven) {
  for (const float value : InterestingFloats()) {
    if (std::isinf(value)) continue;
    EXPECT_EQ(Float16FromFloat(value), NearestBySearch(value, 0x7BFF, 65520, FloatFromFloat16)) << value;
  }
}

TEST(Float16Test, EveryPatternSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float half = FloatFromFloat16(static_cast<uint16_t>(bits));
    const float brain = FloatFromBFloat16(static_cast<uint16_t>(bits));
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(FloatFromFloat16(Float16FromFloat(half))));
    } else {
      EXPECT_EQ(Float16FromFloat(half), bits);
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(FloatFromBFloat16(BFloat16FromFloat(brain))));
    } else {
      EXPECT_EQ(BFloat16FromFloat(brain), bits);
    }
  }
}

TEST(Float16Test, SpecialValues) {
  EXPECT_EQ(Float16FromFloat(65504.0f), 0x7BFF);
  EXPECT_EQ(Float16FromFloat(65519.996f), 0x7BFF);
  EXPECT_EQ(Float16FromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(Float16FromFloat(-kInf), 0xFC00);
  EXPECT_EQ(Float16FromFloat(0x1p-24f), 0x0001);
  EXPECT_EQ(Float16FromFloat(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(Float16FromFloat(-0.0f), 0x8000);
  // A payload in the low bits only must not turn into infinity.
  EXPECT_TRUE(std::isnan(FloatFromBFloat16(BFloat16FromFloat(F32(0x7F800001)))));
  EXPECT_TRUE(std::isnan(FloatFromFloat16(Float16FromFloat(F32(0x7F800001)))));
}

template <typename T>
absl::Span<const std::byte> Bytes(const std::vector<T>& v) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(v.data()), v.size() * sizeof(T));
}
template <typename T>
absl::Span<std::byte> MutableBytes(std::vector<T>& v) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(v.data()), v.size() * sizeof(T));
}

// M8: 16 -> 32 -> 16 bits is the identity, and overflows are reported.
TEST(CastElementsTest, ThroughFloat32AndBack) {
  std::vector<uint16_t> all(0x10000), back(0x10000);
  std::vector<float> wide(0x10000);
  for (uint32_t i = 0; i <= 0xFFFF; ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    CastReport report;
    ASSERT_OK(CastElements(Bytes(all), type, MutableBytes(wide), DType::kFloat32, &report));
    ASSERT_OK(CastElements(Bytes(wide), DType::kFloat32, MutableBytes(back), type, &report));
    EXPECT_EQ(report.overflows, 0);
    for (uint32_t i = 0; i <= 0xFFFF; ++i) {
      const bool nan = std::isnan(type == DType::kBFloat16 ? FloatFromBFloat16(all[i]) : FloatFromFloat16(all[i]));
      if (!nan) {
        ASSERT_EQ(back[i], all[i]);
      }
    }
  }
}

TEST(CastElementsTest, CountsOverflows) {
  const std::vector<float> values = {1.0f, 65504.0f, 65519.0f, 65520.0f, -1e6f, kInf, NAN};
  std::vector<uint16_t> half(values.size());
  CastReport report;
  ASSERT_OK(CastElements(Bytes(values), DType::kFloat32, MutableBytes(half), DType::kFloat16, &report));
  EXPECT_EQ(report.overflows, 2);
  EXPECT_EQ(half[2], 0x7BFF);
  EXPECT_EQ(half[3], 0x7C00);
  EXPECT_EQ(half[4], 0xFC00);
  EXPECT_TRUE(std::isnan(FloatFromFloat16(half[6])));

  const std::vector<double> large = {1e300, 1e-300, 0.5};
  std::vector<float> single(3);
  report = {};
  ASSERT_OK(CastElements(Bytes(large), DType::kFloat64, MutableBytes(single), DType::kFloat32, &report));
  EXPECT_EQ(report.overflows, 1);
  EXPECT_THAT(single, ElementsAre(kInf, 0.0f, 0.5f));
}

TEST(CastElementsTest, DoubleToSixteenBitsRoundsOnce) {
  // Just above a tie of bfloat16, by less than float can hold: rounding to float first would lose it.
  const double above_tie = 1.0 + 0x1p-8 + 0x1p-40;
  const double below_tie = 1.0 + 3 * 0x1p-8 - 0x1p-40;
  const std::vector<double> values = {above_tie, -above_tie, below_tie, 1.0 + 0x1p-8, 1e39, 65520.0 - 0x1p-30};
  std::vector<uint16_t> out(values.size());
  CastReport report;
  ASSERT_OK(CastElements(Bytes(values), DType::kFloat64, MutableBytes(out), DType::kBFloat16, &report));
  EXPECT_EQ(out[0], 0x3F81);
  EXPECT_EQ(out[1], 0xBF81);
  EXPECT_EQ(out[2], 0x3F81);
  EXPECT_EQ(out[3], 0x3F80);
  EXPECT_EQ(out[4], 0x7F80);
  EXPECT_EQ(report.overflows, 1);
  ASSERT_OK(CastElements(Bytes(values), DType::kFloat64, MutableBytes(out), DType::kFloat16, &report));
  EXPECT_EQ(out[5], 0x7BFF);
}

TEST(CastElementsTest, IntegersAreCopiedAndNeverConverted) {
  const std::vector<int64_t> ids = {1, -2, 3};
  std::vector<int64_t> copy(3);
  CastReport report;
  ASSERT_OK(CastElements(Bytes(ids), DType::kInt64, MutableBytes(copy), DType::kInt64, &report));
  EXPECT_EQ(copy, ids);
  std::vector<float> floats(3);
  EXPECT_THAT(CastElements(Bytes(ids), DType::kInt64, MutableBytes(floats), DType::kFloat32, &report),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int64")));
  EXPECT_THAT(CastElements(Bytes(floats), DType::kFloat32, MutableBytes(copy), DType::kFloat16, &report),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("12 bytes of float32")));
}

}  // namespace
}  // namespace slipway
