#include "engine/corpus/megatron_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/corpus/pretrain_dataset.h"
#include "engine/tokenizer/json_text.h"
#include "tests/support/corpus_files.h"
#include "tests/support/source_dir.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokenizer::Json;

std::vector<int32_t> Shuffled(uint32_t seed, int32_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  NumpyShuffler(seed).Shuffle(values.data(), values.data() + values.size());
  return values;
}

TEST(NumpyShuffler, GivesNumpysOrder) {
  EXPECT_THAT(Shuffled(1234, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(Shuffled(0, 10), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
  EXPECT_THAT(Shuffled(0, 1), ElementsAre(0));
}

// Indices and samples of megatron-core's GPTDataset (tests/golden/make_megatron_order.py).
class MegatronGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         files_.ReadFile(SLIPWAY_SOURCE_DIR "/tests/golden/data/megatron_order.json"));
    ASSERT_OK_AND_ASSIGN(golden_, tokenizer::ParseJson(text));
    lengths_ = golden_["lengths"].get<std::vector<int32_t>>();
  }

  PosixFileSystem files_;
  TempDir directory_;
  Json golden_;
  std::vector<int32_t> lengths_;
};

TEST_F(MegatronGolden, IndicesAreTheSame) {
  ASSERT_GE(golden_["cases"].size(), 10u);
  for (const Json& entry : golden_["cases"]) {
    SCOPED_TRACE(entry["split"].dump() + entry["num_samples"].dump() + " x " + entry["seq_length"].dump());
    const SplitShares shares = *ParseSplit(entry["split"].get<std::string>());
    const SequenceRange range =
        RangeOf(shares, static_cast<SplitPart>(entry["part"].get<int>()), static_cast<int64_t>(lengths_.size()));
    ASSERT_OK_AND_ASSIGN(
        const MegatronIndices indices,
        BuildMegatronIndices(
            [&](int64_t s) { return lengths_[static_cast<size_t>(s)]; }, range,
            {.num_samples = entry["num_samples"], .seq_length = entry["seq_length"], .seed = entry["seed"]}));
    EXPECT_EQ(indices.document_index, entry["document_index"].get<std::vector<int32_t>>());
    EXPECT_EQ(indices.shuffle_index, entry["shuffle_index"].get<std::vector<uint32_t>>());
    ASSERT_EQ(indices.sample_documents.size(), entry["sample_index"].size());
    for (size_t i = 0; i < indices.sample_documents.size(); ++i) {
      EXPECT_EQ(indices.sample_documents[i], entry["sample_index"][i][0].get<int64_t>());
      EXPECT_EQ(indices.sample_offsets[i], entry["sample_index"][i][1].get<int32_t>());
    }
  }
}

TEST_F(MegatronGolden, SamplesAreTheSame) {
  std::vector<std::vector<int32_t>> sequences;
  int32_t next = 0;
  for (const int32_t length : lengths_) {
    sequences.emplace_back(static_cast<size_t>(length));
    std::iota(sequences.back().begin(), sequences.back().end(), next);
    next += length;
  }
  const std::string prefix = slipway::testing::WriteDataset(files_, directory_.Path("data"), sequences);
  for (const Json& entry : golden_["cases"]) {
    PretrainOptions options{.prefix = prefix,
                            .split = *ParseSplit(entry["split"].get<std::string>()),
                            .part = static_cast<SplitPart>(entry["part"].get<int>()),
                            .seq_length = entry["seq_length"],
                            .vocab_size = 1000};
    ASSERT_OK_AND_ASSIGN(const auto source, OpenPretrainInMegatronOrder(files_, options,
                                                                        {.requested_samples = entry["num_samples"],
                                                                         .seed = entry["seed"],
                                                                         .cache_directory = directory_.Path("cache")}));
    EXPECT_GE(source->epoch_size(), entry["num_samples"].get<int64_t>());
    for (size_t k = 0; k < entry["labels"].size(); ++k) {
      ASSERT_OK_AND_ASSIGN(const Sample sample, source->Get(static_cast<int64_t>(k)));
      EXPECT_EQ(sample.labels, entry["labels"][k].get<std::vector<int32_t>>());
      EXPECT_EQ(sample.tokens.size(), sample.labels.size());
      EXPECT_EQ(*source->LossWeight(static_cast<int64_t>(k)), static_cast<double>(sample.labels.size()));
    }
    EXPECT_THAT(source->Get(source->epoch_size()),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("requested_samples")));
  }
}

TEST(BuildMegatronIndices, RefusesWhatCannotBeNumbered) {
  const auto one = [](int64_t) { return 1; };
  EXPECT_THAT(BuildMegatronIndices([](int64_t) { return 0; }, {0, 5}, {.num_samples = 1, .seq_length = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tokens")));
  EXPECT_THAT(BuildMegatronIndices(one, {0, 5}, {.num_samples = 0, .seq_length = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 1")));
  EXPECT_THAT(BuildMegatronIndices(one, {0, 5}, {.num_samples = int64_t{1} << 62, .seq_length = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many")));
  EXPECT_THAT(BuildMegatronIndices(one, {0, 5}, {.num_samples = int64_t{1} << 31, .seq_length = int64_t{1} << 20}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many")));
}

}  // namespace
}  // namespace slipway::engine::corpus
