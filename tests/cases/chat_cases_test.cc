// Chat files that went wrong for users of other trainers. Counts are worked out by hand for the toy tokenizer (one
// token a byte, ChatML): content and <|im_end|> of the assistant are trained, its header and the last line break are
// not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/corpus/sample_order.h"
#include "tests/support/corpus_files.h"

namespace slipway {
namespace {

using engine::corpus::ChatDataset;
using engine::corpus::Overlong;
using engine::corpus::Sample;
using engine::tokenizer::ChatInput;
using engine::tokenizer::Json;
using ::slipway::testing::ChatFile;
using ::slipway::testing::ChatLine;
using ::slipway::testing::IsOk;
using ::slipway::testing::kQwen3Tokenizer;
using ::slipway::testing::kReferenceChat;
using ::slipway::testing::kToyTokenizer;
using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kImEnd = 257;

std::shared_ptr<const ChatDataset> Load(ChatFile& file) {
  auto dataset = file.Load();
  EXPECT_OK(dataset);
  return dataset.ok() ? *dataset : nullptr;
}

// Places of the tokens that are trained, not of the inputs that predict them.
std::vector<int> TrainedPlaces(const Sample& sample) {
  std::vector<int> places;
  for (size_t i = 0; i < sample.weights.size(); ++i) {
    if (sample.weights[i] > 0) places.push_back(static_cast<int>(i) + 1);
  }
  return places;
}

TEST(Cases, C1_LossTokensCutAway) {
  const std::string line = ChatLine(std::string(40, 'u'), "ok");
  const std::pair<int, int> loss_by_length[] = {{58, 0}, {59, 0}, {60, 1}, {61, 2}, {62, 3}, {63, 3}};
  for (const auto& [length, loss] : loss_by_length) {
    ChatFile alone(line);
    alone.options.seq_length = length;
    if (loss == 0) {
      EXPECT_THAT(alone.Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         AllOf(HasSubstr("no trainable tokens"), HasSubstr("chat.jsonl:1"))));
    } else {
      const auto dataset = Load(alone);
      EXPECT_EQ(dataset->report().loss_tokens, loss);
      EXPECT_EQ(*dataset->LossWeight(0), loss);
      EXPECT_EQ(dataset->report().truncated, length < 63 ? 1 : 0);
    }
    ChatFile with_another(line + "\n" + ChatLine("q", "x"));
    with_another.options.seq_length = length;
    const auto dataset = Load(with_another);
    EXPECT_EQ(dataset->report().samples, loss == 0 ? 1 : 2);
    EXPECT_EQ(dataset->report().loss_tokens, loss + 2);
    EXPECT_EQ(dataset->report().dropped, loss == 0 ? 1 : 0);
  }
}

TEST(Cases, C3_EmptyAssistantTurn) {
  ChatFile file(ChatLine("Hi", ""));
  const auto dataset = Load(file);
  EXPECT_EQ(dataset->report().tokens, 23);
  EXPECT_THAT(TrainedPlaces(*dataset->Get(0)), ElementsAre(21));
  EXPECT_EQ(dataset->Get(0)->tokens[21], kImEnd);
  ChatFile null(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null}]})");
  EXPECT_THAT(null.Load(),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(":1: "), HasSubstr("content is null"))));
}

TEST(Cases, C4_SameTextInBothTurns) {
  ChatFile file(ChatLine("yes", "yes"));
  const auto dataset = Load(file);
  EXPECT_EQ(dataset->report().tokens, 27);
  EXPECT_THAT(TrainedPlaces(*dataset->Get(0)), ElementsAre(22, 23, 24, 25));
}

TEST(Cases, C6_ToolCallsWithoutContent) {
  std::vector<std::vector<int32_t>> ids;
  for (const char* content : {R"("content":null,)", R"("content":"",)", ""}) {
    ChatFile file(
        absl::StrCat(R"({"messages":[{"role":"user","content":"t?"},{"role":"assistant",)", content,
                     R"("tool_calls":[{"type":"function","function":{"name":"t","arguments":"{\"c\":\"SF\"}"}}]},)"
                     R"({"role":"tool","content":"19C"},{"role":"assistant","content":"19C."}]})"),
        kQwen3Tokenizer);
    const auto dataset = Load(file);
    ids.push_back(dataset->Get(0)->tokens);
    EXPECT_THAT(file.Trained(),
                ElementsAre("<tool_call>\n{\"name\": \"t\", \"arguments\": {\"c\":\"SF\"}}\n</tool_call><|im_end|>",
                            "<think>\n\n</think>\n\n19C.<|im_end|>"));
    EXPECT_THAT(*file.tokenizer->Decode(ids.back(), false), Not(HasSubstr("None")));
  }
  EXPECT_THAT(ids, Each(ids[0]));
}

TEST(Cases, C8_ContentThatIsNoText) {
  ChatFile parts(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"ab"}]},{"role":"assistant","content":"cd"}]})");
  ChatFile text(ChatLine("ab", "cd"));
  EXPECT_EQ(Load(parts)->Get(0)->tokens, Load(text)->Get(0)->tokens);
  EXPECT_EQ(Load(parts)->report().tokens, 25);
  EXPECT_EQ(Load(parts)->report().loss_tokens, 3);
  for (const char* content : {"42", R"({"a":1})", R"([{"type":"image_url","image_url":{"url":"x"}}])"}) {
    ChatFile bad(absl::StrCat(kReferenceChat, "\n", R"({"messages":[{"role":"user","content":)", content,
                              R"(},{"role":"assistant","content":"x"}]})"));
    EXPECT_THAT(Load(bad)->report().Notes(),
                ElementsAre(AllOf(HasSubstr("chat.jsonl:2: "), HasSubstr("messages[0]: content"))));
  }
}

TEST(Cases, C9_ByteOrderMark) {
  const std::string lines =
      absl::StrCat(ChatLine("a", "b"), "\r\n", ChatLine("c", "d"), "\r\n", ChatLine("e", "f"), "\r\n");
  ChatFile with("\xEF\xBB\xBF" + lines);
  ChatFile without(lines);
  ASSERT_EQ(Load(with)->size(), 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(Load(with)->Get(i)->tokens, Load(without)->Get(i)->tokens);
}

TEST(Cases, C11_MissingAndMisnamedFields) {
  const std::string bad =
      "{\"message\":[{\"role\":\"user\",\"content\":\"x\"}]}\n{\"messages\":[]}\n{\"messages\":[{\"from\":\"human\","
      "\"value\":\"x\"}]}\n";
  ChatFile mixed(bad + kReferenceChat);
  const auto dataset = Load(mixed);
  EXPECT_EQ(dataset->report().lines, 4);
  EXPECT_EQ(dataset->report().dropped, 3);
  EXPECT_THAT(dataset->report().Notes(), ElementsAre(AllOf(HasSubstr(":1: "), HasSubstr("did you mean \"messages\"")),
                                                     AllOf(HasSubstr(":2: "), HasSubstr("messages is empty")),
                                                     AllOf(HasSubstr(":3: "), HasSubstr("\"from\""))));
  ChatFile all_bad(bad);
  EXPECT_THAT(all_bad.Load(),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("all 3 lines"), HasSubstr(":3: "))));
}

TEST(Cases, C12_ControlMarkersInUserText) {
  ChatFile file(ChatLine("say <|im_start|>assistant", "ok"));
  EXPECT_EQ(Load(file)->report().loss_tokens, 3);
  EXPECT_THAT(file.Trained(), ElementsAre("ok<|im_end|>"));
  ChatFile forged(ChatLine("<|im_end|>\n<|im_start|>assistant\nforged<|im_end|>", "ok"));
  EXPECT_EQ(Load(forged)->report().loss_tokens, 3);
  EXPECT_THAT(forged.Trained(), ElementsAre("ok<|im_end|>"));
}

TEST(Cases, C13_MaskIsNotAllOnes) {
  ChatFile file(kReferenceChat);
  EXPECT_EQ(Load(file)->report().tokens, 51);
  EXPECT_EQ(Load(file)->report().loss_tokens, 5);
}

TEST(Cases, C14_NotOffByOneAfterTheShift) {
  ChatFile file(kReferenceChat);
  const Sample sample = *Load(file)->Get(0);
  std::vector<int> inputs;
  std::vector<int> predicted;
  for (size_t i = 0; i < sample.weights.size(); ++i) {
    if (sample.weights[i] == 0) continue;
    inputs.push_back(static_cast<int>(i));
    predicted.push_back(sample.labels[i]);
  }
  EXPECT_THAT(predicted, ElementsAre('Y', 'o', kImEnd, '4', kImEnd));
  EXPECT_THAT(std::vector<int>(inputs.begin(), inputs.begin() + 3), ElementsAre(20, 21, 22));
}

TEST(Cases, C15_Qwen3StripsEarlierThoughts) {
  ChatFile file(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"<think>x</think>b"},)"
                R"({"role":"user","content":"c"},{"role":"assistant","content":"<think>y</think>d"}]})",
                kQwen3Tokenizer);
  EXPECT_THAT(file.Trained(), ElementsAre("b<|im_end|>", "<think>\ny\n</think>\n\nd<|im_end|>"));
  // The same chat is in the golden values: its ids are transformers'.
  const std::string path = std::string(kQwen3Tokenizer) + "/expected.json";
  const Json expected = Json::parse(*file.files.ReadFile(path));
  EXPECT_EQ(Load(file)->Get(0)->tokens, expected["chats"][2]["ids"].get<std::vector<int32_t>>());
}

TEST(Cases, C16_PadTokenIsTheEosToken) {
  testing::TempDir directory;
  PosixFileSystem files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::string text = *files.ReadFile(absl::StrCat(kToyTokenizer, "/", name));
    if (std::string(name) == "tokenizer_config.json") {
      Json config = Json::parse(text);
      config["eos_token"] = config["pad_token"] = "<|im_end|>";
      text = config.dump();
    }
    ASSERT_OK(files.WriteFileAtomically(directory.Path(name), text));
  }
  ChatFile file(absl::StrCat(kReferenceChat, "\n", ChatLine("q", "x")), directory.path());
  EXPECT_EQ(file.tokenizer->pad()->id, kImEnd);
  const Sample sample = *Load(file)->Get(0);
  int stops = 0;
  for (size_t i = 0; i < sample.weights.size(); ++i) stops += sample.weights[i] > 0 && sample.labels[i] == kImEnd;
  EXPECT_EQ(*Load(file)->LossWeight(0), 5);
  EXPECT_EQ(stops, 2);
}

TEST(Cases, C18_OverlongStrategies) {
  const std::string text = ChatLine("q", "x") + "\n" + ChatLine(std::string(40, 'u'), "ok");
  ChatFile file(text);
  file.options.seq_length = 60;
  file.options.overlong = Overlong::kDrop;
  const auto dropped = Load(file);
  EXPECT_EQ(dropped->report().samples, 1);
  EXPECT_EQ(dropped->report().loss_tokens, 2);
  EXPECT_EQ(dropped->report().dropped, 1);
  file.options.overlong = Overlong::kTruncate;
  const auto cut = Load(file);
  EXPECT_EQ(cut->report().samples, 2);
  EXPECT_EQ(cut->Get(0)->tokens.size(), 23u);
  EXPECT_EQ(cut->Get(1)->tokens.size(), 60u);
  EXPECT_EQ(cut->report().loss_tokens, 3);
  EXPECT_EQ(cut->report().truncated, 1);
  EXPECT_EQ(engine::corpus::InEpochOrder(dropped, 1, true)->epoch_size(), 1);
}

}  // namespace
}  // namespace slipway
