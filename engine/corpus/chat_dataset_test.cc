#include "engine/corpus/chat_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::ChatFile;
using ::slipway::testing::ChatLine;
using ::slipway::testing::IsOk;
using ::slipway::testing::kReferenceChat;
using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ChatDataset, LabelsAreTheNextTokensAndWeightsTheirMask) {
  ChatFile file(kReferenceChat);
  ASSERT_OK_AND_ASSIGN(const auto dataset, file.Load());
  ASSERT_OK_AND_ASSIGN(const Sample sample, dataset->Get(0));
  ASSERT_EQ(sample.tokens.size(), 51u);
  ASSERT_EQ(sample.labels.size(), 51u);
  for (size_t i = 0; i + 1 < sample.tokens.size(); ++i) EXPECT_EQ(sample.labels[i], sample.tokens[i + 1]);
  double weight = 0;
  for (const float w : sample.weights) weight += w;
  EXPECT_EQ(weight, *dataset->LossWeight(0));
  EXPECT_EQ(dataset->vocab_bound(), 258);
}

TEST(ChatDataset, OrderDoesNotDependOnTheNumberOfWorkers) {
  std::string text;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&text, ChatLine(absl::StrCat("q", i), absl::StrCat("a", i)), "\n");
  ChatFile file(text);
  file.options.workers = 1;
  ASSERT_OK_AND_ASSIGN(const auto one, file.Load());
  file.options.workers = 4;
  ASSERT_OK_AND_ASSIGN(const auto four, file.Load());
  ASSERT_EQ(one->size(), 5000);
  ASSERT_EQ(four->size(), 5000);
  for (int64_t i = 0; i < 5000; ++i) {
    EXPECT_EQ(one->Get(i)->tokens, four->Get(i)->tokens);
    EXPECT_EQ(four->LineOf(i), i + 1);
  }
}

TEST(ChatDataset, ReportsTheLongestAndTheDropped) {
  ChatFile file(
      absl::StrCat(ChatLine("q", "x"), "\n\n", ChatLine("q", std::string(50, 'y')), "\n{\n", ChatLine("q", "z"), "\n"));
  file.options.seq_length = 30;
  file.options.overlong = Overlong::kDrop;
  ASSERT_OK_AND_ASSIGN(const auto dataset, file.Load());
  const ChatReport& report = dataset->report();
  EXPECT_EQ(report.lines, 4);
  EXPECT_EQ(report.samples, 2);
  EXPECT_EQ(report.tokens, 46);
  EXPECT_EQ(report.loss_tokens, 4);
  EXPECT_EQ(report.truncated, 0);
  EXPECT_EQ(report.dropped, 2);
  EXPECT_EQ(report.longest_tokens, 72);
  EXPECT_EQ(report.longest_line, 3);
  EXPECT_THAT(report.Notes(), ElementsAre(AllOf(HasSubstr("chat.jsonl:3: "), HasSubstr("72 tokens"), HasSubstr("30")),
                                          AllOf(HasSubstr("chat.jsonl:4: "), HasSubstr("not valid JSON"))));
}

TEST(ChatDataset, KeepsThePlaceOfInvalidUtf8) {
  ChatFile file(absl::StrCat(ChatLine("q", "x"), "\n{\"messages\":[{\"role\":\"assistant\",\"content\":\"\xFF\"}]}\n"));
  ASSERT_OK_AND_ASSIGN(const auto dataset, file.Load());
  EXPECT_THAT(dataset->report().Notes(), ElementsAre(AllOf(HasSubstr(":2: "), HasSubstr("UTF-8"))));
}

TEST(ChatDataset, AFileWithoutLinesIsAFault) {
  ChatFile file("\n \n");
  EXPECT_THAT(file.Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no lines")));
}

TEST(ChatDataset, CountsWhatIsNotListed) {
  std::string text = ChatLine("q", "x") + "\n";
  for (int i = 0; i < 150; ++i) text += "{}\n";
  ChatFile file(text);
  ASSERT_OK_AND_ASSIGN(const auto dataset, file.Load());
  EXPECT_EQ(dataset->report().dropped, 150);
  EXPECT_EQ(dataset->report().Notes().size(), 101u);
  EXPECT_THAT(dataset->report().Notes().back(), HasSubstr("50 more"));
}

}  // namespace
}  // namespace slipway::engine::corpus
