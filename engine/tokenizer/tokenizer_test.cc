#include "engine/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "engine/tokenizer/incremental_decoder.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::tokenizer {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kToy[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/toy_tokenizer";

// The toy's tokenizer.json with other settings beside it.
class EditedToy {
 public:
  EditedToy() { Copy("tokenizer.json"); }
  void Copy(const std::string& name) { Write(name, *files_.ReadFile(absl::StrCat(kToy, "/", name))); }
  void Write(const std::string& name, const std::string& text) {
    EXPECT_OK(files_.WriteFileAtomically(directory_.Path(name), text));
  }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& chat_template_path = "") {
    return Tokenizer::Load(directory_.path(), chat_template_path);
  }

 private:
  TempDir directory_;
  PosixFileSystem files_;
};

TEST(Tokenizer, ToyHasOneTokenAByte) {
  ASSERT_OK_AND_ASSIGN(const auto toy, Tokenizer::Load(kToy));
  EXPECT_EQ(toy->vocab_size(), 260);
  EXPECT_EQ(toy->pad()->id, 259);
  EXPECT_EQ(toy->eos()->id, 258);
  EXPECT_FALSE(toy->bos().has_value());
  EXPECT_EQ(toy->model_max_length(), 4096);
  EXPECT_THAT(toy->stop_ids(), ElementsAre(258));
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, toy->Encode("A \xC3\xA9<|im_end|>\n"));
  EXPECT_THAT(ids, ElementsAre('A', ' ', 0xC3, 0xA9, 257, '\n'));
  std::vector<int32_t> bytes(128);
  std::iota(bytes.begin(), bytes.end(), 0);
  ASSERT_OK_AND_ASSIGN(const std::string text, toy->Decode(bytes, false));
  EXPECT_EQ(text.size(), 128u);
  EXPECT_EQ(text[127], '\x7F');
}

TEST(Tokenizer, SpansOfBytesInsideACharacterAreTheCharacter) {
  ASSERT_OK_AND_ASSIGN(const auto toy, Tokenizer::Load(kToy));
  ASSERT_OK_AND_ASSIGN(const EncodedText encoded, toy->EncodeWithSpans(" \xC3\xA9<|im_end|>"));
  EXPECT_THAT(encoded.spans, ElementsAre(TextSpan{0, 1}, TextSpan{1, 3}, TextSpan{1, 3}, TextSpan{3, 13}));
}

TEST(Tokenizer, RefusesBadInput) {
  ASSERT_OK_AND_ASSIGN(const auto toy, Tokenizer::Load(kToy));
  EXPECT_THAT(toy->Encode("a\xFF"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8 at byte 1")));
  EXPECT_THAT(toy->Decode({5, 260}, false), StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("260"))));
  EXPECT_THAT(toy->Decode({-1}, false), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(toy->TokenOf(300), StatusIs(absl::StatusCode::kNotFound, HasSubstr("300")));
  EXPECT_EQ(toy->IdOf("nothing like it"), std::nullopt);
  EXPECT_EQ(toy->IdOf("<|im_end|>"), 257);
  EXPECT_TRUE(toy->IsSpecial(257));
  EXPECT_FALSE(toy->IsSpecial('a'));
}

TEST(Tokenizer, MissingAndBrokenFilesAreNamed) {
  EXPECT_THAT(Tokenizer::Load("/nowhere"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/tokenizer.json")));
  for (const char* text : {"", "{", "[]", "{\"model\": 3}", "{\"version\":\"1.0\",\"model\":{\"type\":\"What\"}}"}) {
    EditedToy toy;
    toy.Write("tokenizer.json", text);
    EXPECT_THAT(toy.Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokenizer.json"))) << text;
  }
}

TEST(Tokenizer, SettingsAtFaultAreNamed) {
  const std::pair<const char*, const char*> faults[] = {
      {R"({"eos_token": 3})", "eos_token is 3"},
      {R"({"eos_token": "<gone>"})", "\"<gone>\""},
      {R"({"eos_token": {"text": "x"}})", "content"},
      {R"({"model_max_length": "long"})", "model_max_length"},
      {R"({"chat_template": 3})", "chat_template"},
      {R"({"chat_template": [{"name": "default"}]})", "chat_template"},
      {R"({"chat_template": "{% if"})", "template 'default'"},
      {R"([])", "tokenizer_config.json"},
      {R"({"a": )", "not valid JSON"},
  };
  for (const auto& [config, message] : faults) {
    EditedToy toy;
    toy.Write("tokenizer_config.json", config);
    EXPECT_THAT(toy.Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << config;
  }
}

TEST(Tokenizer, ReadsEveryPlaceForSettings) {
  EditedToy toy;
  toy.Write("tokenizer_config.json",
            R"({"eos_token": {"content": "<|im_end|>"}, "bos_token": null, "model_max_length": 1e30,
      "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  toy.Write("special_tokens_map.json", R"({"eos_token": "<|pad|>", "bos_token": "<|im_start|>"})");
  toy.Write("generation_config.json", R"({"eos_token_id": [258, 257]})");
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, toy.Load());
  EXPECT_EQ(tokenizer->eos()->id, 257);  // tokenizer_config.json wins
  EXPECT_EQ(tokenizer->bos()->id, 256);
  EXPECT_THAT(tokenizer->stop_ids(), ElementsAre(257, 258));
  EXPECT_EQ(tokenizer->model_max_length(), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const ChatTemplate* plain, tokenizer->ChatTemplateFor(/*has_tools=*/false));
  EXPECT_EQ(plain->source(), "D");
  ASSERT_OK_AND_ASSIGN(const ChatTemplate* with_tools, tokenizer->ChatTemplateFor(/*has_tools=*/true));
  EXPECT_EQ(with_tools->source(), "T");

  const std::string before = tokenizer->fingerprint();
  toy.Write("chat_template.jinja", "file wins");
  ASSERT_OK_AND_ASSIGN(const auto other, toy.Load());
  ASSERT_OK_AND_ASSIGN(const ChatTemplate* from_file, other->ChatTemplateFor(false));
  EXPECT_EQ(from_file->source(), "file wins");
  EXPECT_NE(other->fingerprint(), before);
}

TEST(Tokenizer, AGivenTemplateReplacesTheDirectorysOwn) {
  EditedToy toy;
  toy.Write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "D"},
      {"name": "tool_use", "template": "T"}]})");
  TempDir elsewhere;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(elsewhere.Path("mine.jinja"), "mine"));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, toy.Load(elsewhere.Path("mine.jinja")));
  ASSERT_OK_AND_ASSIGN(const ChatTemplate* with_tools, tokenizer->ChatTemplateFor(/*has_tools=*/true));
  EXPECT_EQ(with_tools->source(), "mine");
  ASSERT_OK_AND_ASSIGN(const auto plain, toy.Load());
  EXPECT_NE(plain->fingerprint(), tokenizer->fingerprint());
  EXPECT_THAT(toy.Load(elsewhere.Path("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(Tokenizer, WithoutATemplateSaysSo) {
  EditedToy toy;
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, toy.Load());
  EXPECT_FALSE(tokenizer->has_chat_template());
  EXPECT_THAT(tokenizer->ChatTemplateFor(false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no chat template")));
}

// A limit and padding that somebody left in the file must not shape the ids.
TEST(Tokenizer, IgnoresTruncationAndPaddingOfTheFile) {
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(absl::StrCat(kToy, "/tokenizer.json")));
  ASSERT_OK_AND_ASSIGN(Json json, ParseJson(text));
  json["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {
      {"strategy", {{"Fixed", 9}}}, {"direction", "Right"},  {"pad_to_multiple_of", nullptr}, {"pad_id", 259},
      {"pad_type_id", 0},           {"pad_token", "<|pad|>"}};
  EditedToy toy;
  toy.Write("tokenizer.json", json.dump());
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, toy.Load());
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, tokenizer->Encode("abcd"));
  EXPECT_THAT(ids, ElementsAre('a', 'b', 'c', 'd'));
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/qwen3"));
  std::vector<std::vector<int32_t>> serial;
  for (int i = 0; i < 200; ++i) serial.push_back(*tokenizer->Encode(absl::StrCat("Sentence number ", i, " here")));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i)
        wrong[t] += *tokenizer->Encode(absl::StrCat("Sentence number ", i, " here")) != serial[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(IncrementalDecoder, GivesWholeCharactersAndAllOfTheText) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(kToy));
  IncrementalDecoder decoder(tokenizer, /*skip_special_tokens=*/true);
  std::vector<std::string> pieces;
  for (const int32_t id : {int32_t{'a'}, 0xC3, 0xA9, 257, int32_t{' '}, int32_t{'b'}}) {
    ASSERT_OK_AND_ASSIGN(std::string piece, decoder.Push(id));
    pieces.push_back(std::move(piece));
  }
  EXPECT_THAT(pieces, ElementsAre("a", "", "\xC3\xA9", "", " ", "b"));
  ASSERT_OK(decoder.Push(0xC3));
  ASSERT_OK_AND_ASSIGN(const std::string rest, decoder.Finish());
  EXPECT_EQ(rest, "\xEF\xBF\xBD");
  EXPECT_THAT(decoder.Push(99999), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("99999")));
  ASSERT_OK_AND_ASSIGN(const std::string after, decoder.Push('z'));
  EXPECT_EQ(after, "z");
}

TEST(IncrementalDecoder, EqualsDecodingAtOnce) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       Tokenizer::Load(SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/smollm2"));
  const std::string text = "Hello  world, \xF0\x9F\x99\x82 \xE6\x97\xA5\xE6\x9C\xAC <|im_end|>\nend \xF0\x9F\x91\xA9";
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, tokenizer->Encode(text));
  IncrementalDecoder decoder(tokenizer, /*skip_special_tokens=*/false);
  std::string together;
  for (const int32_t id : ids) {
    ASSERT_OK_AND_ASSIGN(const std::string piece, decoder.Push(id));
    together += piece;
  }
  ASSERT_OK_AND_ASSIGN(const std::string rest, decoder.Finish());
  EXPECT_EQ(together + rest, text);
}

}  // namespace
}  // namespace slipway::engine::tokenizer
