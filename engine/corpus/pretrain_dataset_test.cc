#include "engine/corpus/pretrain_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::slipway::testing::WriteDataset;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PretrainDataset : public ::testing::Test {
 protected:
  PretrainOptions Options(const std::vector<std::vector<int32_t>>& sequences, int64_t seq_length) {
    return {.prefix = WriteDataset(files_, directory_.Path("data"), sequences),
            .seq_length = seq_length,
            .vocab_size = 1000};
  }

  PosixFileSystem files_;
  TempDir directory_;
};

TEST_F(PretrainDataset, SamplesRunAcrossSequencesAndSkipEmptyOnes) {
  const PretrainOptions options = Options({{}, {1, 2}, {}, {}, {3}, {4, 5, 6, 7}, {}}, 3);
  ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, options));
  ASSERT_EQ(set->size(), 2);
  EXPECT_THAT(set->Get(0)->tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(set->Get(0)->labels, ElementsAre(2, 3, 4));
  EXPECT_THAT(set->Get(1)->tokens, ElementsAre(4, 5, 6));
  EXPECT_THAT(set->Get(1)->labels, ElementsAre(5, 6, 7));
  EXPECT_THAT(set->Get(1)->weights, ElementsAre(1, 1, 1));
}

TEST_F(PretrainDataset, EveryTokenIsOneLabelInOneEpoch) {
  std::vector<std::vector<int32_t>> sequences;
  int32_t next = 0;
  for (int i = 0; i < 60; ++i) {
    sequences.emplace_back(static_cast<size_t>(i % 7));
    for (int32_t& token : sequences.back()) token = next++;
  }
  const PretrainOptions options = Options(sequences, 5);
  ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, options));
  std::vector<int32_t> labels;
  for (int64_t k = 0; k < set->size(); ++k) {
    const Sample sample = *set->Get(k);
    labels.insert(labels.end(), sample.labels.begin(), sample.labels.end());
  }
  ASSERT_GT(labels.size(), 150u);
  for (size_t i = 0; i < labels.size(); ++i) EXPECT_EQ(labels[i], static_cast<int32_t>(i) + 1);
}

TEST_F(PretrainDataset, NoLossAfterTheEndOfADocument) {
  PretrainOptions options = Options({{1, 2, 9}, {3, 9}, {4, 5}}, 6);
  options.eod_without_loss = 9;
  ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, options));
  EXPECT_THAT(set->Get(0)->tokens, ElementsAre(1, 2, 9, 3, 9, 4));
  EXPECT_THAT(set->Get(0)->weights, ElementsAre(1, 1, 0, 1, 0, 1));
  EXPECT_EQ(*set->LossWeight(0), 4);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenPretrainInMegatronOrder(files_, options, {.requested_samples = 3}));
  for (int64_t k = 0; k < 3; ++k) {
    const Sample sample = *source->Get(k);
    double weight = 0;
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(sample.weights[i], sample.tokens[i] == 9 ? 0 : 1);
      weight += sample.weights[i];
    }
    EXPECT_EQ(*source->LossWeight(k), weight);
  }
}

TEST_F(PretrainDataset, PartsOfASplitShareNothing) {
  std::vector<std::vector<int32_t>> sequences(10);
  for (int32_t i = 0; i < 10; ++i) sequences[static_cast<size_t>(i)] = std::vector<int32_t>(5, i);
  PretrainOptions options = Options(sequences, 4);
  options.split = *ParseSplit("6,2,2");
  const std::pair<SplitPart, std::pair<int, int>> parts[] = {
      {SplitPart::kTraining, {0, 6}}, {SplitPart::kValidation, {6, 8}}, {SplitPart::kTest, {8, 10}}};
  for (const auto& [part, range] : parts) {
    options.part = part;
    ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, options));
    EXPECT_EQ(set->size(), ((range.second - range.first) * 5 - 1) / 4);
    for (int64_t k = 0; k < set->size(); ++k) {
      const Sample sample = *set->Get(k);
      for (const int32_t token : sample.labels) {
        EXPECT_GE(token, range.first);
        EXPECT_LT(token, range.second);
      }
    }
  }
  options.split = *ParseSplit("1,0,0");
  EXPECT_THAT(OpenPretrainSamples(files_, options),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("test share"), HasSubstr("10 sequences"))));
}

TEST_F(PretrainDataset, RefusesWhatCannotBeRead) {
  PretrainOptions options = Options({{1, 2, 3}}, 3);
  EXPECT_THAT(
      OpenPretrainSamples(files_, options),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("3 tokens"), HasSubstr("seq_length + 1 = 4"))));
  EXPECT_THAT(OpenPretrainInMegatronOrder(files_, options, {.requested_samples = 1, .seed = uint64_t{1} << 32}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4294967295")));
  options.seq_length = 0;
  EXPECT_THAT(OpenPretrainSamples(files_, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("seq_length")));
  options.prefix = directory_.Path("none");
  options.seq_length = 2;
  EXPECT_THAT(OpenPretrainSamples(files_, options), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

// New data under an old name must not be read through old indices.
TEST_F(PretrainDataset, RegeneratedDataGetsNewIndices) {
  const MegatronOptions order{.requested_samples = 4, .cache_directory = directory_.Path("cache")};
  ASSERT_OK(OpenPretrainInMegatronOrder(files_, Options({{1, 2, 3, 4, 5, 6, 7, 8, 9}}, 2), order));
  const PretrainOptions shorter = Options({{1, 2}, {3, 4}}, 2);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenPretrainInMegatronOrder(files_, shorter, order));
  for (int64_t k = 0; k < source->epoch_size(); ++k) ASSERT_OK(source->Get(k));
}

}  // namespace
}  // namespace slipway::engine::corpus
