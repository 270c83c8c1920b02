#include "engine/corpus/token_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/fault_file_system.h"
#include "common/str_cat.h"
#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenScan : public ::testing::Test {
 protected:
  // Document d has the tokens of `documents[d]`, as one sequence.
  absl::StatusOr<format::IndexedDataset> Write(const std::vector<std::vector<int32_t>>& documents,
                                               format::TokenType type = format::TokenType::kInt32) {
    auto writer = format::IndexedDatasetWriter::Create(files_, directory_.Path("data"), type);
    EXPECT_OK(writer);
    for (const auto& document : documents) {
      EXPECT_OK(writer->AddSequence(document));
      writer->EndDocument();
    }
    EXPECT_OK(writer->Finish());
    return format::IndexedDataset::Open(files_, directory_.Path("data"));
  }

  PosixFileSystem files_;
  TempDir directory_;
};

// More than one piece of the file for each of several threads.
TEST_F(TokenScan, TheFirstBadIdOfTheFileIsNamedWithItsPlace) {
  std::vector<std::vector<int32_t>> documents(40, std::vector<int32_t>(100'000, 99));
  documents[13][70'001] = 100;
  documents[30][5] = 2'000'000;
  ASSERT_OK_AND_ASSIGN(const auto dataset, Write(documents));
  for (const int workers : {1, 3}) {
    EXPECT_THAT(ScanTokens(files_, dataset, {.vocab_size = 100, .workers = workers}),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(directory_.Path("data.bin: document 13 (sequence 13, token 70001)")),
                               HasSubstr("the id 100, but the model has 100 ids"))));
    EXPECT_THAT(ScanTokens(files_, dataset, {.vocab_size = 101, .workers = workers}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("document 30 (sequence 30, token 5)")));
    EXPECT_OK(ScanTokens(files_, dataset, {.vocab_size = 2'000'001, .workers = workers}));
  }
}

TEST_F(TokenScan, ProgressEndsWithTheWholeFile) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, Write({std::vector<int32_t>(1'000'000, 7)}));
  int64_t last = 0, calls = 0;
  ASSERT_OK(ScanTokens(files_, dataset, {.vocab_size = 8, .workers = 2, .progress = [&](int64_t done, int64_t total) {
                                           EXPECT_GT(done, last);
                                           EXPECT_EQ(total, 4'000'000);
                                           last = done;
                                           ++calls;
                                         }}));
  EXPECT_EQ(last, 4'000'000);
  EXPECT_GT(calls, 1);
}

TEST_F(TokenScan, EveryTypeIsChecked) {
  using format::TokenType;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kUint16,
                               TokenType::kInt32, TokenType::kInt64}) {
    ASSERT_OK_AND_ASSIGN(const auto dataset, Write({{1, 2}, {}, {3, 100, 4}}, type));
    EXPECT_OK(ScanTokens(files_, dataset, {.vocab_size = 101}));
    EXPECT_THAT(ScanTokens(files_, dataset, {.vocab_size = 100}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("document 2 (sequence 2, token 1) holds the id 100")));
  }
}

TEST_F(TokenScan, NegativeAndHugeIdsAreBadAndAnEmptyFileIsGood) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, Write({{1, 2}, {3}}, format::TokenType::kInt64));
  const std::string path = directory_.Path("data.bin");
  for (const int64_t bad : {int64_t{-1}, int64_t{1} << 40}) {
    std::string bytes = *files_.ReadFile(path);
    bytes.replace(16, 8, reinterpret_cast<const char*>(&bad), 8);
    ASSERT_OK(files_.WriteFileAtomically(path, bytes));
    ASSERT_OK_AND_ASSIGN(const auto changed, format::IndexedDataset::Open(files_, directory_.Path("data")));
    EXPECT_THAT(ScanTokens(files_, changed, {.vocab_size = 100}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("document 1 (sequence 1) holds a token id")));
  }
  ASSERT_OK_AND_ASSIGN(const auto empty, Write({{}}));
  EXPECT_OK(ScanTokens(files_, empty, {.vocab_size = 1}));
}

TEST_F(TokenScan, AReadErrorIsThatError) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, Write({std::vector<int32_t>(1000, 7)}));
  FaultFileSystem broken(files_);
  broken.FailReadsOf("data.bin");
  EXPECT_THAT(ScanTokens(broken, dataset, {.vocab_size = 8}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("data.bin")));
}

}  // namespace
}  // namespace slipway::engine::corpus
