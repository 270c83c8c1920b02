#include "engine/corpus/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::ChatFile;
using ::slipway::testing::IsOk;
using ::slipway::testing::kReferenceChat;
using ::slipway::testing::kToyTokenizer;
using ::slipway::testing::LoadTokenizer;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::HasSubstr;

TEST(InspectChatFile, ShowsWhatIsTrained) {
  ChatFile file(std::string("\n") + kReferenceChat + "\n" + kReferenceChat);
  ASSERT_OK_AND_ASSIGN(const ChatInspection inspection, InspectChatFile(file.files, file.tokenizer, file.options, 1));
  EXPECT_EQ(inspection.report.samples, 2);
  ASSERT_EQ(inspection.samples.size(), 1u);
  EXPECT_EQ(inspection.samples[0].line, 2);
  EXPECT_EQ(inspection.samples[0].tokens, 51);
  std::string marked;
  for (const TextPiece& piece : inspection.samples[0].pieces)
    marked += piece.trained ? "[" + piece.text + "]" : piece.text;
  EXPECT_EQ(marked,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Yo<|im_end|>]\n<|im_start|>user\n2+2?<|im_end|>\n"
            "<|im_start|>assistant\n[4<|im_end|>]\n");
}

TEST(InspectIndexedDataset, CountsAndShowsTexts) {
  TempDir directory;
  PosixFileSystem files;
  const std::string prefix = directory.Path("data");
  ASSERT_OK_AND_ASSIGN(auto writer, format::IndexedDatasetWriter::Create(files, prefix, format::TokenType::kUint16));
  ASSERT_OK(writer.AddSequence({'a', 'b'}));
  ASSERT_OK(writer.AddSequence({'c', 258}));
  writer.EndDocument();
  writer.EndDocument();
  ASSERT_OK(writer.AddSequence(std::vector<int32_t>(1000, 'x')));
  writer.EndDocument();
  ASSERT_OK(writer.Finish());
  const auto tokenizer = LoadTokenizer(kToyTokenizer);
  ASSERT_OK_AND_ASSIGN(const IndexedInspection inspection, InspectIndexedDataset(files, prefix, tokenizer.get(), 5));
  EXPECT_EQ(inspection.token_type, format::TokenType::kUint16);
  EXPECT_EQ(inspection.sequences, 3);
  EXPECT_EQ(inspection.documents, 3);
  EXPECT_EQ(inspection.empty_documents, 1);
  EXPECT_EQ(inspection.tokens, 1004);
  EXPECT_EQ(inspection.shortest_sequence, 2);
  EXPECT_EQ(inspection.longest_sequence, 1000);
  ASSERT_EQ(inspection.samples.size(), 2u);
  EXPECT_EQ(inspection.samples[0].text, "abc<|endoftext|>");
  EXPECT_EQ(inspection.samples[0].tokens, 4);
  EXPECT_EQ(inspection.samples[1].document, 2);
  EXPECT_EQ(inspection.samples[1].text, std::string(256, 'x'));
  ASSERT_OK_AND_ASSIGN(const IndexedInspection bare, InspectIndexedDataset(files, prefix, nullptr, 5));
  EXPECT_TRUE(bare.samples.empty());
}

TEST(InspectIndexedDataset, AnIdOfAnotherTokenizerIsNamed) {
  TempDir directory;
  PosixFileSystem files;
  const std::string prefix = slipway::testing::WriteDataset(files, directory.Path("d"), {{1}, {300}});
  EXPECT_THAT(
      InspectIndexedDataset(files, prefix, LoadTokenizer(kToyTokenizer).get(), 5),
      StatusIs(absl::StatusCode::kInvalidArgument, ::testing::AllOf(HasSubstr("document 1"), HasSubstr("300"))));
}

}  // namespace
}  // namespace slipway::engine::corpus
