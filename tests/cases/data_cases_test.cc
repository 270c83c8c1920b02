// Pretraining data and sample orders that went wrong for users of other trainers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/corpus/prepare.h"
#include "engine/corpus/pretrain_dataset.h"
#include "engine/corpus/sample_order.h"
#include "tests/support/corpus_files.h"

namespace slipway {
namespace {

using engine::corpus::BatchSlicing;
using engine::corpus::EpochOrder;
using engine::corpus::PrepareIndexedDatasets;
using engine::corpus::PrepareOptions;
using engine::corpus::PretrainOptions;
using engine::corpus::Sample;
using engine::format::IndexedDataset;
using ::slipway::testing::IsOk;
using ::slipway::testing::kToyTokenizer;
using ::slipway::testing::LoadTokenizer;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::slipway::testing::WriteDataset;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataCases : public ::testing::Test {
 protected:
  absl::Status Prepare(const std::string& text, const std::vector<std::string>& keys, bool append_eod,
                       bool skip_bad_lines = false) {
    PrepareOptions options{.input = directory_.Path("in.jsonl"),
                           .output_prefix = directory_.Path("out"),
                           .json_keys = keys,
                           .append_eod = append_eod,
                           .workers = 2,
                           .skip_bad_lines = skip_bad_lines};
    EXPECT_OK(files_.WriteFileAtomically(options.input, text));
    return PrepareIndexedDatasets(files_, *LoadTokenizer(kToyTokenizer), options).status();
  }
  std::vector<int64_t> Boundaries(const IndexedDataset& dataset) {
    std::vector<int64_t> boundaries;
    for (int64_t d = 0; d <= dataset.document_count(); ++d) boundaries.push_back(dataset.DocumentStart(d));
    return boundaries;
  }
  PretrainOptions RowOf(int64_t tokens, int64_t seq_length) {
    std::vector<int32_t> row(static_cast<size_t>(tokens));
    std::iota(row.begin(), row.end(), 0);
    return {
        .prefix = WriteDataset(files_, directory_.Path("row"), {row}), .seq_length = seq_length, .vocab_size = 1000};
  }

  PosixFileSystem files_;
  TempDir directory_;
};

TEST_F(DataCases, P1_EmptyDocuments) {
  ASSERT_OK(Prepare("{\"text\":\"abc\"}\n{\"text\":\"\"}\n{\"text\":\"de\"}", {"text"}, true));
  ASSERT_OK_AND_ASSIGN(const auto middle, IndexedDataset::Open(files_, directory_.Path("out_text_document")));
  EXPECT_EQ(middle.token_count(), 7);
  EXPECT_THAT(Boundaries(middle), ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(middle.SequenceLength(0), 4);
  EXPECT_EQ(middle.SequenceLength(1), 3);
  EXPECT_EQ(files_.Stat(directory_.Path("out_text_document.idx"))->size, 90);

  ASSERT_OK(Prepare("{\"text\":\"\"}\n{\"text\":\"abc\"}\n{\"text\":\"de\"}", {"text"}, true));
  ASSERT_OK_AND_ASSIGN(const auto first, IndexedDataset::Open(files_, directory_.Path("out_text_document")));
  EXPECT_THAT(Boundaries(first), ElementsAre(0, 0, 1, 2));

  ASSERT_OK(Prepare("{\"text\":\"\"}\n{\"text\":\"\"}", {"text"}, true));
  ASSERT_OK_AND_ASSIGN(const auto all, IndexedDataset::Open(files_, directory_.Path("out_text_document")));
  EXPECT_EQ(all.token_count(), 0);
  EXPECT_THAT(Boundaries(all), ElementsAre(0, 0, 0));
}

TEST_F(DataCases, P2_EodIsPartOfTheRecordedLength) {
  ASSERT_OK(Prepare("{\"text\":\"abc\"}\n{\"text\":\"de\"}", {"text"}, true));
  ASSERT_OK_AND_ASSIGN(const auto dataset, IndexedDataset::Open(files_, directory_.Path("out_text_document")));
  EXPECT_EQ(dataset.token_type(), engine::format::TokenType::kUint16);
  EXPECT_EQ(dataset.SequenceLength(0), 4);
  EXPECT_EQ(dataset.SequenceLength(1), 3);
  EXPECT_EQ(dataset.SequenceStart(1), 4);
  EXPECT_EQ(files_.Stat(directory_.Path("out_text_document.bin"))->size, 14);
  std::vector<int32_t> tokens(3);
  ASSERT_OK(dataset.Read(1, 0, absl::MakeSpan(tokens)));
  EXPECT_THAT(tokens, ElementsAre('d', 'e', 258));
}

TEST_F(DataCases, P6_SampleCountAndLength) {
  const std::pair<int64_t, int64_t> samples_by_tokens[] = {{9, 1}, {16, 1}, {17, 2}, {20, 2}};
  for (const auto& [tokens, samples] : samples_by_tokens) {
    ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, RowOf(tokens, 8)));
    ASSERT_EQ(set->size(), samples) << tokens;
    for (int64_t k = 0; k < samples; ++k) {
      const Sample sample = *set->Get(k);
      ASSERT_EQ(sample.tokens.size(), 8u);
      ASSERT_EQ(sample.labels.size(), 8u);
      for (int32_t i = 0; i < 8; ++i) {
        EXPECT_EQ(sample.tokens[static_cast<size_t>(i)], 8 * k + i);
        EXPECT_EQ(sample.labels[static_cast<size_t>(i)], 8 * k + i + 1);
      }
    }
  }
  // Too short for one sample: refused by the epoch order, read more than once by Megatron's.
  EXPECT_THAT(OpenPretrainSamples(files_, RowOf(8, 8)),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("8 tokens"), HasSubstr("9"))));
  ASSERT_OK_AND_ASSIGN(const auto again, OpenPretrainInMegatronOrder(files_, RowOf(8, 8), {.requested_samples = 1}));
  EXPECT_EQ(again->epoch_size(), 1);
  EXPECT_THAT(again->Get(0)->labels, ElementsAre(1, 2, 3, 4, 5, 6, 7, 0));
  // 40 samples of 20 tokens take 17 epochs, which hold 42.
  ASSERT_OK_AND_ASSIGN(const auto many, OpenPretrainInMegatronOrder(files_, RowOf(20, 8), {.requested_samples = 40}));
  EXPECT_EQ(many->epoch_size(), (17 * 20 - 1) / 8);
}

TEST_F(DataCases, P8_SeveralKeysAndAMissingOne) {
  const std::string good = "{\"text\":\"a\",\"title\":\"bc\"}\n";
  ASSERT_OK(Prepare(good, {"text", "title"}, false));
  for (const char* key : {"text", "title"}) {
    ASSERT_OK(IndexedDataset::Open(files_, directory_.Path(absl::StrCat("out_", key, "_document"))));
  }
  EXPECT_THAT(Prepare(good + "{\"title\":\"c\"}\n", {"text", "title"}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("in.jsonl:2"), HasSubstr("\"text\""))));
  for (const char* key : {"text", "title"}) {
    EXPECT_FALSE(*files_.Exists(directory_.Path(absl::StrCat("out_", key, "_document.idx")))) << key;
  }
  ASSERT_OK(Prepare(good + "{\"title\":\"c\"}\n", {"text", "title"}, false, /*skip_bad_lines=*/true));
  for (const char* key : {"text", "title"}) {
    ASSERT_OK_AND_ASSIGN(const auto dataset,
                         IndexedDataset::Open(files_, directory_.Path(absl::StrCat("out_", key, "_document"))));
    EXPECT_EQ(dataset.document_count(), 1);
  }
}

TEST_F(DataCases, M7c_TokenIdAboveTheVocabulary) {
  PretrainOptions options{.prefix = WriteDataset(files_, directory_.Path("data"), {{1, 2, 3}, {4, 300, 5}, {6, 7, 8}}),
                          .seq_length = 4,
                          .vocab_size = 260};
  ASSERT_OK_AND_ASSIGN(const auto set, OpenPretrainSamples(files_, options));
  EXPECT_THAT(set->Get(0),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(options.prefix), HasSubstr("document 1"), HasSubstr("300"), HasSubstr("260"))));
  options.vocab_size = 301;
  ASSERT_OK_AND_ASSIGN(const auto wider, OpenPretrainSamples(files_, options));
  EXPECT_OK(wider->Get(0));
}

TEST(Cases, R3_LaterEpochsReadEverything) {
  const BatchSlicing slicing{.global_batch_size = 2, .micro_batch_size = 1};
  const EpochOrder in_order(10, 1234, /*shuffle=*/false);
  std::vector<int64_t> resumed;  // stopped after 3 steps
  for (int64_t consumed = 6; consumed < 16; consumed += 2) {
    for (int64_t m = 0; m < 2; ++m) resumed.push_back(in_order.ItemAt(slicing.SampleIndex(consumed, m, 0)));
  }
  EXPECT_THAT(resumed, ElementsAre(6, 7, 8, 9, 0, 1, 2, 3, 4, 5));

  // Shuffled: any stop and resume reads what an undisturbed run reads, and every epoch is a new order of everything.
  const EpochOrder shuffled(10, 1234, /*shuffle=*/true);
  std::vector<int64_t> whole;
  for (int64_t k = 0; k < 30; ++k) whole.push_back(shuffled.ItemAt(k));
  for (int64_t stop = 0; stop < 30; ++stop) {
    const EpochOrder after_restart(10, 1234, /*shuffle=*/true);
    for (int64_t k = stop; k < 30; ++k) EXPECT_EQ(after_restart.ItemAt(k), whole[static_cast<size_t>(k)]);
  }
  std::set<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> items(whole.begin() + 10 * epoch, whole.begin() + 10 * (epoch + 1));
    epochs.insert(items);
    std::sort(items.begin(), items.end());
    EXPECT_THAT(items, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
  EXPECT_EQ(epochs.size(), 3u);
}

}  // namespace
}  // namespace slipway
