#include "engine/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/posix_file_system.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::tokenizer {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source, ChatInput input = {}, Json special = Json::object()) {
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Compile(source, std::move(special));
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(input);
}

// What Jinja2 prints, as transformers sets it up (tests/golden/make_template_cases.py).
TEST(ChatTemplate, PrintsWhatTransformersPrints) {
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       files.ReadFile(SLIPWAY_SOURCE_DIR "/tests/golden/data/template_cases.json"));
  ASSERT_OK_AND_ASSIGN(const Json golden, ParseJson(text));
  ASSERT_GT(golden["cases"].size(), 40u);
  ChatInput input;
  input.variables = golden["variables"];
  for (const Json& entry : golden["cases"]) {
    SCOPED_TRACE(entry["template"].get<std::string>());
    const absl::StatusOr<std::string> rendered = Render(entry["template"].get<std::string>(), input);
    if (entry.contains("error")) {
      EXPECT_THAT(rendered, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chat template")));
    } else {
      ASSERT_OK(rendered);
      EXPECT_EQ(*rendered, entry["text"].get<std::string>());
    }
  }
}

TEST(ChatTemplate, GivesSpecialTokensAndFlags) {
  ChatInput input;
  input.messages = Json::parse(R"([{"role":"user","content":"Hi"}])");
  input.add_generation_prompt = true;
  ASSERT_OK_AND_ASSIGN(
      const std::string text,
      Render("{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}{{ tools }}", input,
             {{"bos_token", "<s>"}}));
  EXPECT_EQ(text, "<s>Hi>None");
}

TEST(ChatTemplate, VariablesWinOverSpecialTokens) {
  ChatInput input;
  input.variables = {{"bos_token", "mine"}};
  ASSERT_OK_AND_ASSIGN(const std::string text, Render("{{ bos_token }}", input, {{"bos_token", "<s>"}}));
  EXPECT_EQ(text, "mine");
}

TEST(ChatTemplate, StrftimeNowGivesADate) {
  ASSERT_OK_AND_ASSIGN(const std::string text, Render("{{ strftime_now('%d %b %Y') }}"));
  absl::Time date;
  std::string error;
  ASSERT_TRUE(absl::ParseTime("%d %b %Y", text, absl::LocalTimeZone(), &date, &error)) << text << ": " << error;
  EXPECT_LT(absl::AbsDuration(absl::Now() - date), absl::Hours(50));
  ChatInput fixed;
  fixed.now_unix_seconds = 1721952000;
  ASSERT_OK_AND_ASSIGN(const std::string then, Render("{{ strftime_now('%d %b %Y %H:%M') }}", fixed));
  EXPECT_EQ(then, "26 Jul 2024 00:00");
  EXPECT_THAT(Render("{{ strftime_now('%!') }}"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("%!")));
}

TEST(ChatTemplate, AnErrorNamesTheLineAndTheReason) {
  EXPECT_THAT(Render("a\nb {{ raise_exception('roles must alternate') }}"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("roles must alternate"), HasSubstr("chat_template:2"))));
  EXPECT_THAT(Render("a\n{% if %}"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chat_template:2")));
}

TEST(ChatTemplate, ARunawayTemplateEnds) {
  EXPECT_THAT(Render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fuel")));
}

TEST(ChatTemplate, RecursionIsAnErrorAndNoCrash) {
  EXPECT_THAT(Render("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("recursion")));
}

}  // namespace
}  // namespace slipway::engine::tokenizer
