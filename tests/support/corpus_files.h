// For tests of data: the toy tokenizer (tests/golden/make_toy_tokenizer.py), files from lines, and what a mask trains.
#ifndef SLIPWAY_TESTS_SUPPORT_CORPUS_FILES_H_
#define SLIPWAY_TESTS_SUPPORT_CORPUS_FILES_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/posix_file_system.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/corpus/chat_messages.h"
#include "engine/corpus/inspect.h"
#include "engine/format/indexed_dataset.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::testing {

inline constexpr char kToyTokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/toy_tokenizer";
inline constexpr char kQwen3Tokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/qwen3";
inline constexpr char kLlama3Tokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/llama3";
inline constexpr char kSmollm2Tokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/smollm2";

// "Hi" and "Yo", "2+2?" and "4": 51 tokens of the toy tokenizer, 5 of them trained.
inline constexpr char kReferenceChat[] =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"},)"
    R"({"role":"user","content":"2+2?"},{"role":"assistant","content":"4"}]})";

inline std::string ChatLine(const std::string& user, const std::string& assistant) {
  using engine::tokenizer::Json;
  return Json{{"messages", {{{"role", "user"}, {"content", user}}, {{"role", "assistant"}, {"content", assistant}}}}}
      .dump();
}

inline std::shared_ptr<const engine::tokenizer::Tokenizer> LoadTokenizer(const std::string& directory) {
  auto tokenizer = engine::tokenizer::Tokenizer::Load(directory);
  EXPECT_OK(tokenizer);
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// A chat file with a tokenizer, and options to change.
class ChatFile {
 public:
  explicit ChatFile(const std::string& text, const std::string& tokenizer_directory = kToyTokenizer)
      : tokenizer(LoadTokenizer(tokenizer_directory)) {
    options.path = directory_.Path("chat.jsonl");
    options.seq_length = 4096;
    options.workers = 2;
    EXPECT_OK(files.WriteFileAtomically(options.path, text));
  }

  absl::StatusOr<std::shared_ptr<const engine::corpus::ChatDataset>> Load() {
    return engine::corpus::ChatDataset::Load(files, tokenizer, options);
  }

  // The texts of the trained runs of sample `item`.
  std::vector<std::string> Trained(int64_t item = 0) {
    auto inspection = engine::corpus::InspectChatFile(files, tokenizer, options, item + 1);
    EXPECT_OK(inspection);
    std::vector<std::string> texts;
    if (!inspection.ok()) return texts;
    for (const auto& piece : inspection->samples.at(static_cast<size_t>(item)).pieces) {
      if (piece.trained) texts.push_back(piece.text);
    }
    return texts;
  }

  PosixFileSystem files;
  std::shared_ptr<const engine::tokenizer::Tokenizer> tokenizer;
  engine::corpus::ChatDatasetOptions options;

 private:
  TempDir directory_;
};

// An indexed dataset with one document a sequence.
inline std::string WriteDataset(FileSystem& files, const std::string& prefix,
                                const std::vector<std::vector<int32_t>>& sequences) {
  auto writer = engine::format::IndexedDatasetWriter::Create(files, prefix, engine::format::TokenType::kInt32);
  EXPECT_OK(writer);
  for (const auto& sequence : sequences) {
    EXPECT_OK(writer->AddSequence(sequence));
    writer->EndDocument();
  }
  EXPECT_OK(writer->Finish());
  return prefix;
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_CORPUS_FILES_H_
