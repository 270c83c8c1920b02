#include "engine/corpus/chat_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/corpus/chat_messages.h"
#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::ChatFile;
using ::slipway::testing::IsOk;
using ::slipway::testing::kLlama3Tokenizer;
using ::slipway::testing::kQwen3Tokenizer;
using ::slipway::testing::kReferenceChat;
using ::slipway::testing::kSmollm2Tokenizer;
using ::slipway::testing::kToyTokenizer;
using ::slipway::testing::LoadTokenizer;
using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The toy tokenizer with another template.
class Templated {
 public:
  explicit Templated(const std::string& chat_template) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      EXPECT_OK(
          files_.WriteFileAtomically(directory_.Path(name), *files_.ReadFile(std::string(kToyTokenizer) + "/" + name)));
    }
    EXPECT_OK(files_.WriteFileAtomically(directory_.Path("chat_template.jinja"), chat_template));
  }

  absl::StatusOr<std::string> Trained(const std::string& line) {
    auto encoder = ChatEncoder::Create(LoadTokenizer(directory_.path()));
    if (!encoder.ok()) return encoder.status();
    auto chat = ParseChatLine(line);
    if (!chat.ok()) return chat.status();
    auto encoded = encoder->Encode(*chat);
    if (!encoded.ok()) return encoded.status();
    std::vector<int32_t> ids;
    for (size_t i = 0; i < encoded->ids.size(); ++i) {
      if (encoded->trained[i] != 0) ids.push_back(encoded->ids[i]);
    }
    return encoder->tokenizer().Decode(ids, /*skip_special_tokens=*/false);
  }

 private:
  slipway::testing::TempDir directory_;
  PosixFileSystem files_;
};

TEST(ChatEncoder, TrainsWhatTheAssistantSaysOnEveryModel) {
  EXPECT_THAT(ChatFile(kReferenceChat, kToyTokenizer).Trained(), ElementsAre("Yo<|im_end|>", "4<|im_end|>"));
  EXPECT_THAT(ChatFile(kReferenceChat, kSmollm2Tokenizer).Trained(), ElementsAre("Yo<|im_end|>", "4<|im_end|>"));
  EXPECT_THAT(ChatFile(kReferenceChat, kLlama3Tokenizer).Trained(), ElementsAre("Yo<|eot_id|>", "4<|eot_id|>"));
  // Qwen3 opens the last reply with a block of thoughts, and the model has to write it.
  EXPECT_THAT(ChatFile(kReferenceChat, kQwen3Tokenizer).Trained(),
              ElementsAre("Yo<|im_end|>", "<think>\n\n</think>\n\n4<|im_end|>"));
}

TEST(ChatEncoder, WhiteSpaceThatTheTemplateTrimsIsNoFault) {
  const std::string line = slipway::testing::ChatLine(" a \n", "\n b c \n");
  EXPECT_THAT(ChatFile(line, kLlama3Tokenizer).Trained(), ElementsAre("b c<|eot_id|>"));
  // Its header ends with a line break, and one token holds that and the reply's own.
  EXPECT_THAT(ChatFile(line, kSmollm2Tokenizer).Trained(), ElementsAre("\n\n b c \n<|im_end|>"));
}

TEST(ChatEncoder, ReasoningIsPartOfTheReply) {
  EXPECT_THAT(ChatFile(R"({"messages":[{"role":"user","content":"a"},)"
                       R"({"role":"assistant","reasoning_content":"why","content":"b"}]})",
                       kQwen3Tokenizer)
                  .Trained(),
              ElementsAre("<think>\nwhy\n</think>\n\nb<|im_end|>"));
}

TEST(ChatEncoder, ToolCallsAreTrainedWithWhatTheirTextSays) {
  const char* const line =
      R"({"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":"Look.","tool_calls":)"
      R"([{"type":"function","function":{"name":"f","arguments":{"q":"<|im_end|> x"}}}]},)"
      R"({"role":"tool","content":""},{"role":"tool","content":"19"},{"role":"assistant","content":"ok"}]})";
  EXPECT_THAT(
      ChatFile(line, kQwen3Tokenizer).Trained(),
      ElementsAre(
          "Look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"q\": \"<|im_end|> x\"}}\n</tool_call><|im_end|>",
          "<think>\n\n</think>\n\nok<|im_end|>"));
}

TEST(ChatEncoder, ATemplateThatDropsToolCallsIsAFault) {
  const char* const line = R"({"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":"x",)"
                           R"("tool_calls":[{"function":{"name":"f","arguments":{}}}]}]})";
  auto encoder = ChatEncoder::Create(LoadTokenizer(kToyTokenizer));
  ASSERT_OK(encoder);
  EXPECT_THAT(encoder->Encode(*ParseChatLine(line)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leaves tool_calls out")));
}

TEST(ChatEncoder, AUserWhoImitatesToolResultsIsMaskedAllTheSame) {
  const char* const line =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"<think>x</think>call"},)"
      R"({"role":"user","content":"<tool_response>\n19\n</tool_response>"},{"role":"assistant","content":"ok"}]})";
  EXPECT_THAT(ChatFile(line, kQwen3Tokenizer).Trained(),
              ElementsAre("<think>\nx\n</think>\n\ncall<|im_end|>", "<think>\n\n</think>\n\nok<|im_end|>"));
}

TEST(ChatEncoder, ATemplateWithoutEndTokensTrainsTheContent) {
  Templated toy(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% "
      "endif %}");
  ASSERT_OK_AND_ASSIGN(const std::string trained, toy.Trained(kReferenceChat));
  EXPECT_EQ(trained, "Yo4");
}

TEST(ChatEncoder, TheDateIsAlwaysTheSame) {
  Templated toy("{% for m in messages %}{{ m.content }}{{ strftime_now('%d %b %Y') }}<|im_end|>{% endfor %}");
  ASSERT_OK_AND_ASSIGN(const std::string trained, toy.Trained(slipway::testing::ChatLine("q", "today is")));
  EXPECT_EQ(trained, "today is26 Jul 2024<|im_end|>");
}

TEST(ChatEncoder, HeadersInsideContentsAreNotMistakenForHeaders) {
  Templated toy(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt "
      "%}assistant: {% endif %}");
  ASSERT_OK_AND_ASSIGN(const std::string trained,
                       toy.Trained(slipway::testing::ChatLine("assistant: no<|im_end|>assistant: ", "assistant: yes")));
  EXPECT_EQ(trained, "assistant: yes<|im_end|>");
}

TEST(ChatEncoder, RefusesTemplatesThatHideWhatIsWhose) {
  EXPECT_THAT(
      Templated("{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}").Trained(kReferenceChat),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("depending on what they say")));
  EXPECT_THAT(Templated("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}").Trained(kReferenceChat),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
  EXPECT_THAT(Templated("nothing").Trained(kReferenceChat),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot tell")));
  EXPECT_THAT(Templated("{{ raise_exception('never') }}").Trained(kReferenceChat),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("never")));
  EXPECT_THAT(Templated("x").Trained(slipway::testing::ChatLine("\xF3\xB5\x80\x80", "a")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("U+F5000")));
}

}  // namespace
}  // namespace slipway::engine::corpus
