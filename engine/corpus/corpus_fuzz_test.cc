// Damaged chat lines never crash and never make a mask of another length than the ids; what is accepted has something
// to train. Every mutation follows from the seed, which a failure prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "engine/corpus/chat_encoder.h"
#include "engine/corpus/chat_messages.h"
#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::LoadTokenizer;

const char* const kSeeds[] = {
    slipway::testing::kReferenceChat,
    R"({"messages":[{"role":"system","content":"é🙂"},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":"<think>x</think>b"}]})",
    R"({"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"c\":1}"}}]},{"role":"tool","content":"19C"},{"role":"assistant","content":"19C."}]})",
};
const char* const kPieces[] = {"\"",
                               "{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "null",
                               "true",
                               "-1e999",
                               "\\u0000",
                               "\\ud800",
                               "\xFF",
                               "\xF3\xB5\x80\x80",
                               "\"role\"",
                               "\"content\"",
                               "\"assistant\"",
                               "<|im_start|>",
                               "<|im_end|>\\n",
                               "</think>",
                               "{{ x }}",
                               " "};

std::string Mutate(std::string line, std::mt19937& random) {
  const int edits = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < edits && !line.empty(); ++i) {
    const size_t place = random() % line.size();
    const size_t length = std::min<size_t>(random() % 12, line.size() - place);
    switch (random() % 5) {
      case 0:
        line[place] = static_cast<char>(random());
        break;
      case 1:
        line.erase(place, length);
        break;
      case 2:
        line.insert(place, kPieces[random() % std::size(kPieces)]);
        break;
      case 3:
        line.insert(place, line.substr(random() % line.size(), random() % 40));
        break;
      case 4:
        line.resize(place);
        break;
    }
  }
  return line;
}

// Valid JSON with odd chats: messages doubled, left out, with other roles, contents made of odd pieces.
std::string Rearrange(const std::string& line, std::mt19937& random) {
  tokenizer::Json chat = tokenizer::Json::parse(line);
  tokenizer::Json& messages = chat["messages"];
  const char* const roles[] = {"system", "user", "assistant", "tool", "assistant\n", "developer"};
  const char* const words[] = {"<|im_start|>assistant\n",
                               "<|im_end|>",
                               "</think>",
                               "<think>",
                               "<tool_response>",
                               "</tool_response>",
                               "<tool_call>",
                               " ",
                               "\n",
                               "e\u0301",
                               "text",
                               "{{ x }}",
                               "🙂",
                               "\0"};
  for (int i = 0; i < 4; ++i) {
    tokenizer::Json& message = messages[random() % messages.size()];
    switch (random() % 5) {
      case 0:
        message["role"] = roles[random() % std::size(roles)];
        break;
      case 1:
        messages.push_back(tokenizer::Json(message));
        break;
      case 2:
        message.erase("content");
        break;
      default: {
        std::string content;
        for (size_t n = random() % 5; n > 0; --n) content += words[random() % std::size(words)];
        message["content"] = content;
      }
    }
  }
  return chat.dump();
}

TEST(CorpusFuzz, DamagedLinesNeverCrash) {
  for (const char* directory : {slipway::testing::kToyTokenizer, slipway::testing::kQwen3Tokenizer}) {
    ASSERT_OK_AND_ASSIGN(const ChatEncoder encoder, ChatEncoder::Create(LoadTokenizer(directory)));
    int accepted = 0;
    for (uint32_t seed = 0; seed < 3000; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      const std::string original = kSeeds[random() % std::size(kSeeds)];
      const std::string line = seed % 2 == 0 ? Mutate(original, random) : Rearrange(original, random);
      const auto chat = ParseChatLine(line);
      if (!chat.ok()) continue;
      const auto encoded = encoder.Encode(*chat);
      if (!encoded.ok()) continue;
      ++accepted;
      ASSERT_EQ(encoded->ids.size(), encoded->trained.size());
      const bool trains = std::find(encoded->trained.begin(), encoded->trained.end(), 1) != encoded->trained.end();
      EXPECT_TRUE(trains) << line;
    }
    EXPECT_GT(accepted, 300);
  }
}

}  // namespace
}  // namespace slipway::engine::corpus
