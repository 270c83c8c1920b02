#include "engine/corpus/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/status_matchers.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

TEST(ParseChatLine, KeepsWhatTemplatesMayRead) {
  ASSERT_OK_AND_ASSIGN(
      const tokenizer::ChatInput chat,
      ParseChatLine(
          R"({"id":7,"tools":[{"type":"function"}],"messages":[{"role":"user","content":"a","name":"Ann"},)"
          R"({"role":"assistant","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}],"reasoning_content":"r"}]})"));
  EXPECT_EQ(
      chat.messages.dump(),
      R"([{"role":"user","content":"a","name":"Ann"},{"role":"assistant","content":"bc","reasoning_content":"r"}])");
  EXPECT_EQ(chat.tools.dump(), R"([{"type":"function"}])");
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST(ParseChatLine, EmptyOrNullToolsAreNone) {
  for (const char* tools : {"null", "[]"}) {
    ASSERT_OK_AND_ASSIGN(
        const tokenizer::ChatInput chat,
        ParseChatLine(std::string(R"({"messages":[{"role":"assistant","content":"b"}],"tools":)") + tools + "}"));
    EXPECT_TRUE(chat.tools.is_null());
  }
}

TEST(ParseChatLine, NamesEveryFault) {
  const std::pair<const char*, const char*> faults[] = {
      {"", "not valid JSON"},
      {"{\"messages\":", "not valid JSON"},
      {"[1]", "expected an object"},
      {"3", "expected an object"},
      {R"({"message":[]})", "did you mean \"messages\""},
      {"{}", "it has nothing"},
      {R"({"messages":{}})", "expected a list"},
      {R"({"messages":[]})", "messages is empty"},
      {R"({"messages":[3]})", "messages[0]: it is 3"},
      {R"({"messages":[{"from":"human","value":"x"}]})", R"(messages[0]: there is no "role"; it has "from", "value")"},
      {R"({"messages":[{"role":3,"content":"x"}]})", "role is 3"},
      {R"({"messages":[{"role":"","content":"x"}]})", "role is \"\""},
      {R"({"messages":[{"role":"user"}]})", "there is no \"content\""},
      {R"({"messages":[{"role":"user","content":null}]})", "content is null"},
      {R"({"messages":[{"role":"user","content":42}]})", "content is 42"},
      {R"({"messages":[{"role":"user","content":{"a":1}}]})", "content is {\"a\":1}"},
      {R"({"messages":[{"role":"user","content":true}]})", "content is true"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "content[0] is \"x\""},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "\"image_url\""},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "has no text"},
      {R"({"messages":[{"role":"user","content":"x"}]})", "nothing to learn"},
      {R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}]})", "content is null"},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":"y"}]})", "tool_calls is \"y\""},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":[1]}]})", "tool_calls has 1"},
      {R"({"messages":[{"role":"assistant","content":"x"}],"tools":"y"})", "tools is \"y\""},
      {R"({"messages":[{"role":"assistant","content":"x"}],"tools":[1]})", "tools has 1"},
  };
  for (const auto& [line, message] : faults) {
    EXPECT_THAT(ParseChatLine(line), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << line;
  }
}

}  // namespace
}  // namespace slipway::engine::corpus
