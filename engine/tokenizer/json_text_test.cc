#include "engine/tokenizer/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace slipway::engine::tokenizer {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

TEST(ParseJson, KeepsTheOrderOfMembers) {
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(R"({"z":1,"a":[true,null,"é"]})"));
  EXPECT_EQ(json.dump(), R"({"z":1,"a":[true,null,"é"]})");
}

TEST(ParseJson, SaysWhereItIsWrong) {
  EXPECT_THAT(ParseJson(R"({"a":1,})"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("column 8")));
  EXPECT_THAT(ParseJson(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not valid JSON")));
  EXPECT_THAT(ParseJson("\"\xFF\""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  EXPECT_THAT(ParseJson(R"("\ud800")"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("surrogate")));
}

TEST(ParseJson, RefusesDeepNestingBeforeRecursing) {
  EXPECT_THAT(ParseJson(std::string(1000000, '[')), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested")));
  EXPECT_THAT(ParseJson(std::string(100, '[') + std::string(100, ']')), IsOk());
  EXPECT_THAT(ParseJson("\"" + std::string(1000, '[') + "\""), IsOk());  // brackets in a text are text
}

TEST(ShowJson, CutsLongTextsBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "é";
  const std::string shown = ShowJson(Json(text));
  EXPECT_LT(shown.size(), 70u);
  EXPECT_THAT(ParseJson(shown.substr(0, shown.size() - 3) + "\""), IsOk());  // still valid UTF-8 without the "…"
}

}  // namespace
}  // namespace slipway::engine::tokenizer
