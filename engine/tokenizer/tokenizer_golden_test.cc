// Ids, texts and chats equal transformers' on three real tokenizers with a reduced vocabulary
// (tests/golden/make_tokenizers.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/posix_file_system.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::tokenizer {
namespace {

using ::slipway::testing::IsOk;

class TokenizerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string directory = std::string(SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/") + GetParam();
    ASSERT_OK_AND_ASSIGN(tokenizer_, Tokenizer::Load(directory));
    PosixFileSystem files;
    ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(directory + "/expected.json"));
    ASSERT_OK_AND_ASSIGN(expected_, ParseJson(text));
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Json expected_;
};

std::optional<int32_t> IdOf(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<int32_t>(value.get<int32_t>());
}

std::optional<int32_t> IdOf(const std::optional<SpecialToken>& token) {
  return token.has_value() ? std::optional<int32_t>(token->id) : std::nullopt;
}

TEST_P(TokenizerGolden, SpecialTokensAndSize) {
  EXPECT_EQ(tokenizer_->vocab_size(), expected_["vocab_size"].get<int64_t>());
  EXPECT_EQ(IdOf(tokenizer_->bos()), IdOf(expected_["bos_id"]));
  EXPECT_EQ(IdOf(tokenizer_->eos()), IdOf(expected_["eos_id"]));
  EXPECT_EQ(IdOf(tokenizer_->pad()), IdOf(expected_["pad_id"]));
}

TEST_P(TokenizerGolden, EncodesAndDecodes) {
  ASSERT_GT(expected_["texts"].size(), 15u);
  for (const Json& entry : expected_["texts"]) {
    const std::string text = entry["text"].get<std::string>();
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, tokenizer_->Encode(text));
    EXPECT_EQ(ids, entry["ids"].get<std::vector<int32_t>>());
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> with_special,
                         tokenizer_->Encode(text, AddSpecialTokens::kAsConfigured));
    EXPECT_EQ(with_special, entry["ids_with_special"].get<std::vector<int32_t>>());
    ASSERT_OK_AND_ASSIGN(const std::string decoded, tokenizer_->Decode(ids, /*skip_special_tokens=*/false));
    EXPECT_EQ(decoded, entry["decoded"].get<std::string>());
    ASSERT_OK_AND_ASSIGN(const std::string without, tokenizer_->Decode(ids, /*skip_special_tokens=*/true));
    EXPECT_EQ(without, entry["decoded_without_special"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, SpansCoverTheTextInOrder) {
  for (const Json& entry : expected_["texts"]) {
    const std::string text = entry["text"].get<std::string>();
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const EncodedText encoded, tokenizer_->EncodeWithSpans(text));
    EXPECT_EQ(encoded.ids, entry["ids"].get<std::vector<int32_t>>());
    int64_t covered = 0;
    for (const TextSpan& span : encoded.spans) {
      EXPECT_LE(span.begin, covered);  // no gap; tokens inside one character share its span
      EXPECT_GE(span.end, covered);
      covered = span.end;
    }
    EXPECT_EQ(covered, static_cast<int64_t>(text.size()));
  }
}

TEST_P(TokenizerGolden, RendersChats) {
  ASSERT_GE(expected_["chats"].size(), 4u);
  for (const Json& entry : expected_["chats"]) {
    ChatInput input;
    input.messages = entry["messages"];
    if (entry.contains("tools")) input.tools = entry["tools"];
    if (entry.contains("variables")) input.variables = entry["variables"];
    input.add_generation_prompt = entry.value("add_generation_prompt", false);
    ASSERT_OK_AND_ASSIGN(const ChatTemplate* chat_template, tokenizer_->ChatTemplateFor(entry.contains("tools")));
    ASSERT_OK_AND_ASSIGN(const std::string rendered, chat_template->Render(input));
    EXPECT_EQ(rendered, entry["rendered"].get<std::string>());
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, tokenizer_->Encode(rendered));
    EXPECT_EQ(ids, entry["ids"].get<std::vector<int32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(Real, TokenizerGolden, ::testing::Values("qwen3", "llama3", "smollm2"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace slipway::engine::tokenizer
