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

}  // namespace
}  // namespace slipway::engine::nn
