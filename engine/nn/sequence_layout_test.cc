#include "engine/nn/sequence_layout.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorEqual;
using ::testing::ElementsAre;

TEST(SequenceLayoutTest, RowsAndPadding) {
  const SequenceLayout layout = MakeSequenceLayout({3, 2}, {40, 7}, 8, at::kCPU);
  EXPECT_EQ(layout.num_tokens, 8);
  EXPECT_EQ(layout.num_rows, 2);
  EXPECT_EQ(layout.max_row_length, 3);
  EXPECT_FALSE(layout.uniform);
  EXPECT_THAT(layout.cu_seqlens_host, ElementsAre(0, 3, 5, 8));
  EXPECT_THAT(layout.cu_seqlens, TensorEqual(at::tensor({0, 3, 5, 8}, at::kInt)));
  EXPECT_THAT(layout.positions, TensorEqual(at::tensor({0, 1, 2, 0, 1, 0, 1, 2}, at::kLong)));
  EXPECT_THAT(layout.sample_index, TensorEqual(at::tensor({40, 40, 40, 7, 7, -1, -1, -1}, at::kLong)));
}

TEST(SequenceLayoutTest, LongPaddingIsTheLongestRow) {
  EXPECT_EQ(MakeSequenceLayout({2}, {0}, 9, at::kCPU).max_row_length, 7);
}

TEST(SequenceLayoutTest, UniformOnlyWhenEqualRowsFillAllTokens) {
  EXPECT_TRUE(MakeSequenceLayout({4, 4}, {0, 1}, 8, at::kCPU).uniform);
  EXPECT_FALSE(MakeSequenceLayout({4, 4}, {0, 1}, 9, at::kCPU).uniform);
  EXPECT_FALSE(MakeSequenceLayout({5, 3}, {0, 1}, 8, at::kCPU).uniform);
  EXPECT_FALSE(MakeSequenceLayout({4, 4, 0}, {0, 1, 2}, 8, at::kCPU).uniform);
}

TEST(SequenceLayoutTest, EmptyRowsKeepTheLengthFixed) {
  const SequenceLayout layout = MakeSequenceLayout({4, 0, 0}, {3, 0, 0}, 4, at::kCPU);
  EXPECT_THAT(layout.cu_seqlens_host, ElementsAre(0, 4, 4, 4, 4));
}

TEST(SequenceLayoutTest, RowsThatDoNotFitAreRefused) {
  EXPECT_THROW(MakeSequenceLayout({5, 4}, {0, 1}, 8, at::kCPU), c10::Error);
  EXPECT_THROW(MakeSequenceLayout({-1}, {0}, 8, at::kCPU), c10::Error);
  EXPECT_THROW(MakeSequenceLayout({5}, {0, 1}, 8, at::kCPU), c10::Error);
}

TEST(SequenceLayoutTest, SlicesKeepTheIdentityOfTokens) {
  const SequenceLayout layout = MakeSequenceLayout({3, 2}, {40, 7}, 8, at::kCPU);
  const SequenceLayout second = SliceOfTokens(layout, 1, 2);
  EXPECT_EQ(second.num_tokens, 4);
  EXPECT_TRUE(at::equal(second.positions, layout.positions.narrow(0, 4, 4)));
  EXPECT_TRUE(at::equal(second.sample_index, layout.sample_index.narrow(0, 4, 4)));
  EXPECT_THROW(SliceOfTokens(layout, 0, 3), c10::Error);
}

// Two ranks: a row of 8 has four chunks of 2, of which rank 0 has the outer ones; a row of 3 is padded to 4.
TEST(SequenceLayoutTest, ContextParallelRanksHaveTwoChunksOfEachRow) {
  const SequenceLayout first = MakeSequenceLayout({8, 3}, {40, 7}, 16, at::kCPU, {.rank = 0, .size = 2});
  EXPECT_EQ(first.num_tokens, 8);
  EXPECT_EQ(first.max_row_length, 4);
  EXPECT_FALSE(first.uniform);
  EXPECT_THAT(first.cu_seqlens_host, ElementsAre(0, 4, 6, 8));
  EXPECT_TRUE(at::equal(first.positions, at::tensor({0, 1, 6, 7, 0, 3, 0, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(first.sample_index, at::tensor({40, 40, 40, 40, 7, -1, -1, -1}, at::kLong)));
  const ContextMap& map = *first.context;
  EXPECT_THAT(map.tokens_host, ElementsAre(0, 1, 6, 7, 8, 11, 12, 15));
  EXPECT_THAT(map.whole->cu_seqlens_host, ElementsAre(0, 8, 12, 16));
  EXPECT_THAT(map.chunk_starts_host, ElementsAre(0, 2, 3, 4));
  EXPECT_TRUE(at::equal(map.earlier, at::tensor({0, 1, 4, 6}, at::kLong)));
  EXPECT_TRUE(at::equal(map.later, at::tensor({2, 3, 5, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(map.to_ranks, at::tensor({0, 1, 6, 7, 8, 11, 12, 15, 2, 3, 4, 5, 9, 10, 13, 14}, at::kLong)));
  EXPECT_TRUE(at::equal(map.to_ranks.index_select(0, map.to_whole), at::arange(16)));
  const SequenceLayout second = MakeSequenceLayout({8, 3}, {40, 7}, 16, at::kCPU, {.rank = 1, .size = 2});
  EXPECT_TRUE(at::equal(second.positions, at::tensor({2, 3, 4, 5, 1, 2, 1, 2}, at::kLong)));
}

TEST(SequenceLayoutTest, ContextParallelRowsMustFitWithTheirPadding) {
  EXPECT_THROW(MakeSequenceLayout({5}, {0}, 6, at::kCPU, {.size = 2}), c10::Error);        // no multiple of 4
  EXPECT_THROW(MakeSequenceLayout({5, 3}, {0, 1}, 8, at::kCPU, {.size = 2}), c10::Error);  // 8 and 4 are more than 8
  EXPECT_TRUE(MakeSequenceLayout({5, 8}, {0, 1}, 16, at::kCPU, {.size = 2}).uniform);
  EXPECT_EQ(MakeSequenceLayout({5}, {0}, 8, at::kCPU, {.rank = 0, .size = 1}).context, nullptr);
}

}  // namespace
}  // namespace slipway::engine::nn
