#include "common/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_format.h"

namespace slipway {
namespace {

void ExpectBlock(PhiloxKey key, PhiloxBlock counter, PhiloxBlock expected) {
  const PhiloxBlock block = Philox(key, counter);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block.v[i], expected.v[i]) << absl::StrFormat("word %d: %08x", i, block.v[i]);
}

// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(PhiloxTest, Random123Vectors) {
  ExpectBlock({0, 0}, {}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  ExpectBlock({0xffffffff, 0xffffffff}, {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  ExpectBlock({0xa4093822, 0x299f31d0}, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(PhiloxUniformTest, StaysInsideTheOpenInterval) {
  EXPECT_EQ(PhiloxUniform(0), 0x1p-24f);
  EXPECT_GT(PhiloxUniform(0), 0.0f);
  EXPECT_LT(PhiloxUniform(0xffffffff), 1.0f);
  EXPECT_EQ(PhiloxUniform(0xffffffff), 1.0f - 0x1p-24f);
  EXPECT_EQ(PhiloxUniform(0x80000000), 0.5f + 0x1p-24f);
}

// Expected values from an independent evaluation of the inverse distribution function (Python's statistics.NormalDist,
// whose log is the platform's) at (word + 1/2) / 2^32.
TEST(PhiloxNormalTest, IsTheInverseDistributionFunction) {
  const std::tuple<uint32_t, double> kExpected[] = {{0u, -6.337957754553789},
                                                    {1u, -6.166429517819749},
                                                    {1000u, -5.039851125968711},
                                                    {0x10000000u, -1.5341205434059566},
                                                    {0x13333333u, -1.4395314704450153},
                                                    {0x40000000u, -0.6744897498297384},
                                                    {0x7fffffffu, -2.9180993729166234e-10},
                                                    {0x80000000u, 2.9180993729166234e-10},
                                                    {0xc0000000u, 0.6744897505624251},
                                                    {0xffffffffu, 6.337957754553789}};
  for (const auto& [word, expected] : kExpected) {
    EXPECT_NEAR(PhiloxNormal(word), expected, std::abs(expected) * 4e-15) << word;
  }
}

// These bits are the contract: a change of them changes every model's initial weights.
TEST(PhiloxNormalTest, BitsAreFixed) {
  uint64_t hash = 0xCBF29CE484222325ull;
  const PhiloxKey key = InitialWeightKey(1234, "model.layers.0.self_attn.q_proj.weight");
  for (uint64_t block = 0; block < 100'000; ++block) {
    const PhiloxBlock words = Philox(key, InitialWeightCounter(block));
    for (const uint32_t word : words.v) {
      uint64_t bits;
      const double value = PhiloxNormal(word);
      std::memcpy(&bits, &value, sizeof(bits));
      hash = (hash ^ bits) * 0x100000001B3ull;
    }
  }
  EXPECT_EQ(hash, 0x5a78f4fb631afff9ull) << absl::StrFormat("%#x", hash);
}

TEST(PhiloxNormalTest, Moments) {
  const PhiloxKey key = InitialWeightKey(7, "w");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kBlocks = 250'000;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    for (const uint32_t word : Philox(key, InitialWeightCounter(block)).v) {
      const double x = PhiloxNormal(word);
      sum += x;
      squares += x * x;
      fourth += x * x * x * x;
    }
  }
  constexpr double kCount = 4.0 * kBlocks;  // standard errors: 0.001, 0.0014, 0.0098
  EXPECT_NEAR(sum / kCount, 0.0, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0, 0.007);
  EXPECT_NEAR(fourth / kCount, 3.0, 0.05);
}

TEST(PhiloxKeyTest, EveryPartOfAKeyMatters) {
  const auto word = [](PhiloxKey key) { return uint64_t{key.k1} << 32 | key.k0; };
  std::set<uint64_t> keys;
  for (uint64_t seed : {0, 1, 2}) {
    for (const char* name : {"", "a", "b", "ab", "ba"}) keys.insert(word(InitialWeightKey(seed, name)));
    for (uint64_t step : {0, 1, 2}) {
      for (uint64_t site : {0, 1, 2}) keys.insert(word(DropoutKey(seed, step, site)));
    }
  }
  EXPECT_EQ(keys.size(), 3u * 5 + 3 * 9);

  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> counters;
  for (uint64_t sample : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (uint32_t token : {0u, 1u}) {
      for (uint32_t feature : {0u, 1u}) {
        const PhiloxBlock c = DropoutCounter(sample, token, feature);
        counters.emplace(c.v[0], c.v[1], c.v[2], c.v[3]);
      }
    }
  }
  EXPECT_EQ(counters.size(), 12u);
}

}  // namespace
}  // namespace slipway
