#include "engine/corpus/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/support/corpus_files.h"
#include "tests/support/source_dir.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::kQwen3Tokenizer;
using ::slipway::testing::kToyTokenizer;
using ::slipway::testing::LoadTokenizer;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokenizer::Json;

class Prepare : public ::testing::Test {
 protected:
  Prepare() { options_.output_prefix = directory_.Path("out"); }

  absl::StatusOr<PrepareReport> Run(const std::string& text, const std::string& tokenizer = kToyTokenizer) {
    options_.input = directory_.Path("in.jsonl");
    EXPECT_OK(files_.WriteFileAtomically(options_.input, text));
    return PrepareIndexedDatasets(files_, *LoadTokenizer(tokenizer), options_);
  }
  std::string Bytes(const std::string& name) { return *files_.ReadFile(directory_.Path(name)); }

  TempDir directory_;
  PosixFileSystem files_;
  PrepareOptions options_;
};

// The same documents written by megatron-core's IndexedDatasetBuilder (tests/golden/make_megatron_order.py).
TEST_F(Prepare, WritesTheBytesThatMegatronWrites) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       files_.ReadFile(SLIPWAY_SOURCE_DIR "/tests/golden/data/megatron_order.json"));
  ASSERT_OK_AND_ASSIGN(const Json golden, tokenizer::ParseJson(text));
  options_.append_eod = true;
  ASSERT_OK_AND_ASSIGN(const PrepareReport report,
                       Run("{\"text\":\"abc\"}\n{\"text\":\"\"}\n{\"text\":[\"de\",\"\"]}\n"
                           "{\"text\":[\"\\u0001\",\"\\u0002\\u0003\",\"<|pad|>\\u0000\"]}\n"));
  EXPECT_EQ(absl::BytesToHexString(Bytes("out_text_document.bin")), golden["prepared"]["bin"].get<std::string>());
  EXPECT_EQ(absl::BytesToHexString(Bytes("out_text_document.idx")), golden["prepared"]["idx"].get<std::string>());
  EXPECT_EQ(report.lines, 4);
  ASSERT_EQ(report.outputs.size(), 1u);
  EXPECT_EQ(report.outputs[0].documents, 4);
  EXPECT_EQ(report.outputs[0].empty_documents, 1);
  EXPECT_EQ(report.outputs[0].sequences, 5);
  EXPECT_EQ(report.outputs[0].tokens, 13);
}

TEST_F(Prepare, AnyNumberOfWorkersGivesTheSameBytes) {
  std::string text;
  for (int i = 0; i < 10000; ++i) absl::StrAppend(&text, "{\"text\":\"document ", i, " says ", i * i, "\"}\n");
  options_.workers = 1;
  ASSERT_OK(Run(text, kQwen3Tokenizer));
  const std::string bin = Bytes("out_text_document.bin");
  const std::string idx = Bytes("out_text_document.idx");
  options_.workers = 4;
  int64_t calls = 0;
  PrepareProgress last;
  options_.progress = [&](const PrepareProgress& progress) {
    ++calls;
    EXPECT_GE(progress.bytes_read, last.bytes_read);
    last = progress;
  };
  ASSERT_OK(Run(text, kQwen3Tokenizer));
  EXPECT_EQ(Bytes("out_text_document.bin"), bin);
  EXPECT_EQ(Bytes("out_text_document.idx"), idx);
  EXPECT_GE(calls, 1);
  EXPECT_EQ(last.lines, 10000);
  EXPECT_EQ(last.bytes_read, static_cast<int64_t>(text.size()));
  EXPECT_EQ(last.bytes_total, static_cast<int64_t>(text.size()));
}

TEST_F(Prepare, BadLinesEndTheRunOrAreCounted) {
  const std::pair<const char*, const char*> faults[] = {
      {"{", "not valid JSON"},
      {"[]", "expected an object"},
      {"{\"a\":1}", "no \"text\""},
      {"{\"text\":3}", "\"text\": it is 3"},
      {"{\"text\":[1]}", "\"text\": it is 1"},
      {"{\"text\":null}", "it is null"},
  };
  for (const auto& [line, message] : faults) {
    const std::string text = absl::StrCat("{\"text\":\"a\"}\n", line, "\n{\"text\":\"b\"}\n");
    options_.skip_bad_lines = false;
    EXPECT_THAT(Run(text),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("in.jsonl:2: "), HasSubstr(message))));
    EXPECT_FALSE(*files_.Exists(directory_.Path("out_text_document.idx")));
    EXPECT_FALSE(*files_.Exists(directory_.Path("out_text_document.bin")));
    options_.skip_bad_lines = true;
    ASSERT_OK_AND_ASSIGN(const PrepareReport report, Run(text));
    EXPECT_EQ(report.skipped, 1);
    ASSERT_EQ(report.skipped_lines.size(), 1u);
    EXPECT_EQ(report.skipped_lines[0].line, 2);
    EXPECT_EQ(report.outputs[0].documents, 2);
  }
}

TEST_F(Prepare, AFileWithoutADocumentIsAMistake) {
  for (const bool skip : {false, true}) {
    options_.skip_bad_lines = skip;
    EXPECT_THAT(Run(" \n\n"), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("in.jsonl has no document"), HasSubstr("no line in it"))));
    EXPECT_FALSE(*files_.Exists(directory_.Path("out_text_document.idx")));
  }
  EXPECT_THAT(Run("{\"title\":\"x\"}\n{}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("all of its 2 lines were left out; line 1: there is no \"text\"")));
  ASSERT_OK_AND_ASSIGN(const PrepareReport report, Run("{\"text\":\"\"}\n"));
  EXPECT_EQ(report.outputs[0].empty_documents, 1);
}

TEST_F(Prepare, OptionsAreChecked) {
  options_.json_keys = {};
  EXPECT_THAT(Run("{}"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no JSON key")));
  options_.json_keys = {"a", "a"};
  EXPECT_THAT(Run("{}"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

TEST_F(Prepare, WithoutAnEosTokenThereIsNoEod) {
  TempDir tokenizer;
  ASSERT_OK(files_.WriteFileAtomically(tokenizer.Path("tokenizer.json"),
                                       *files_.ReadFile(absl::StrCat(kToyTokenizer, "/tokenizer.json"))));
  options_.append_eod = true;
  EXPECT_THAT(Run("{\"text\":\"a\"}", tokenizer.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("eos_token")));
}

TEST_F(Prepare, AFileWithoutDocumentsIsAnError) {
  EXPECT_THAT(Run("\n"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no document")));
}

}  // namespace
}  // namespace slipway::engine::corpus
