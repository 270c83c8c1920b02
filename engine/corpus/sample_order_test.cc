#include "engine/corpus/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "engine/corpus/mock_dataset.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<int64_t> Epoch(const EpochOrder& order, int64_t epoch) {
  std::vector<int64_t> items;
  for (int64_t i = 0; i < order.size(); ++i) items.push_back(order.ItemAt(epoch * order.size() + i));
  return items;
}

TEST(EpochOrder, EveryEpochHasEachItemOnce) {
  for (const int64_t size : {1, 2, 3, 10, 255, 256, 257, 1000, 65536, 99991}) {
    const EpochOrder order(size, 1234, true);
    for (const int64_t epoch : {0, 1, 7}) {
      std::vector<int64_t> items = Epoch(order, epoch);
      std::sort(items.begin(), items.end());
      std::vector<int64_t> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(items, all) << size << " items, epoch " << epoch;
    }
  }
}

TEST(EpochOrder, SeedsAndEpochsGiveDifferentOrders) {
  for (const int64_t size : {100, 10000}) {
    std::set<std::vector<int64_t>> orders;
    for (const uint64_t seed : {0, 1, 2}) {
      for (const int64_t epoch : {0, 1, 2}) orders.insert(Epoch(EpochOrder(size, seed, true), epoch));
    }
    EXPECT_EQ(orders.size(), 9u);
  }
}

TEST(EpochOrder, WithoutShufflingIsTheOrderOfTheFile) {
  const EpochOrder order(10, 1234, false);
  for (int64_t k = 0; k < 25; ++k) EXPECT_EQ(order.ItemAt(k), k % 10);
}

// Each place sees each item about equally often, and neighbours do not stay together: for both ways of shuffling.
TEST(EpochOrder, IsSpreadEvenly) {
  constexpr int64_t kEpochs = 4000;
  for (const int64_t size : {8, 300}) {
    const EpochOrder order(size, 5, true);
    std::vector<int64_t> at_first(static_cast<size_t>(size), 0);
    int64_t neighbours = 0;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      ++at_first[static_cast<size_t>(order.ItemAt(epoch * size))];
      if (order.ItemAt(epoch * size + 1) == order.ItemAt(epoch * size) + 1) ++neighbours;
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
    double chi_square = 0;
    for (const int64_t count : at_first) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, static_cast<double>(size) + 5 * std::sqrt(2.0 * static_cast<double>(size)));
    EXPECT_LT(neighbours, 2 * kEpochs / size + 30);
  }
}

TEST(EpochOrder, OneOrderIsPinnedForEver) {
  // A change of these numbers changes what every resumed run reads.
  EXPECT_THAT(Epoch(EpochOrder(8, 1234, true), 0), ::testing::ElementsAre(5, 3, 1, 4, 0, 2, 6, 7));
  const EpochOrder large(1000, 1234, true);
  std::vector<int64_t> items;
  for (const int64_t k : {0, 1, 999, 1000, 123456789}) items.push_back(large.ItemAt(k));
  EXPECT_THAT(items, ::testing::ElementsAre(207, 616, 649, 876, 359));
}

TEST(MockDataset, IsAFunctionOfTheSeedAndTheSample) {
  ASSERT_OK_AND_ASSIGN(const auto set,
                       MakeMockDataset({.num_samples = 5, .seq_length = 16, .vocab_size = 100, .seed = 3}));
  ASSERT_OK_AND_ASSIGN(const auto same,
                       MakeMockDataset({.num_samples = 9, .seq_length = 16, .vocab_size = 100, .seed = 3}));
  ASSERT_OK_AND_ASSIGN(const auto other,
                       MakeMockDataset({.num_samples = 5, .seq_length = 16, .vocab_size = 100, .seed = 4}));
  EXPECT_EQ(set->size(), 5);
  EXPECT_EQ(set->Get(2)->tokens, same->Get(2)->tokens);
  EXPECT_NE(set->Get(2)->tokens, set->Get(3)->tokens);
  EXPECT_NE(set->Get(2)->tokens, other->Get(2)->tokens);
  const Sample sample = *set->Get(0);
  ASSERT_EQ(sample.tokens.size(), 16u);
  ASSERT_EQ(sample.labels.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(sample.labels[i] == (5 * sample.tokens[i] + 7) % 100 ||
                sample.labels[i] == (5 * sample.tokens[i] + 8) % 100);
    if (i > 0) {
      EXPECT_EQ(sample.tokens[i], sample.labels[i - 1]);
    }
  }
  EXPECT_EQ(*set->LossWeight(0), 16);
  EXPECT_THAT(MakeMockDataset({.num_samples = 5, .seq_length = 16, .vocab_size = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_size is 0")));
}

TEST(InEpochOrder, GivesTheItemsOfTheOrder) {
  ASSERT_OK_AND_ASSIGN(const auto set,
                       MakeMockDataset({.num_samples = 7, .seq_length = 4, .vocab_size = 50, .seed = 3}));
  const auto source = InEpochOrder(set, 11, true);
  const EpochOrder order(7, 11, true);
  EXPECT_EQ(source->epoch_size(), 7);
  for (int64_t k = 0; k < 30; ++k) EXPECT_EQ(source->Get(k)->tokens, set->Get(order.ItemAt(k))->tokens);
  EXPECT_EQ(*TotalLossWeight(*source, 3, 10), 40);
}

// Ranks and micro-batches partition the global batch, whatever the layout.
TEST(BatchSlicing, EveryLayoutReadsTheSameBatch) {
  for (const auto& [dp, micro] : {std::pair<int, int64_t>{1, 1}, {1, 4}, {2, 2}, {4, 1}, {3, 4}}) {
    std::vector<int64_t> read;
    for (int rank = 0; rank < dp; ++rank) {
      const BatchSlicing slicing{.global_batch_size = 24, .micro_batch_size = micro, .dp_rank = rank, .dp_size = dp};
      for (int64_t m = 0; m < slicing.micro_batches(); ++m) {
        for (int64_t i = 0; i < micro; ++i) read.push_back(slicing.SampleIndex(100, m, i));
      }
    }
    std::sort(read.begin(), read.end());
    std::vector<int64_t> expected(24);
    std::iota(expected.begin(), expected.end(), 100);
    EXPECT_EQ(read, expected);
  }
  // Megatron-LM's order: rank 1 of 2 takes the second run of each micro-step.
  const BatchSlicing slicing{.global_batch_size = 8, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2};
  EXPECT_EQ(slicing.SampleIndex(0, 0, 0), 2);
  EXPECT_EQ(slicing.SampleIndex(0, 1, 1), 7);
}

}  // namespace
}  // namespace slipway::engine::corpus
