#include "engine/corpus/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

TEST(ParseSplit, NormalisesShares) {
  ASSERT_OK_AND_ASSIGN(const SplitShares shares, ParseSplit("969, 30, 1"));
  EXPECT_DOUBLE_EQ(shares[0], 0.969);
  EXPECT_DOUBLE_EQ(shares[2], 0.001);
  ASSERT_OK_AND_ASSIGN(const SplitShares one, ParseSplit("5"));
  EXPECT_EQ(one[0], 1);
  EXPECT_EQ(one[1], 0);
}

TEST(ParseSplit, RefusesWhatIsNoSplit) {
  for (const char* text : {"", "a", "1,2,3,4", "-1,2", "0,0,0", "nan", "inf,1", "1;2", "1,,2"}) {
    EXPECT_THAT(ParseSplit(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split is"))) << text;
  }
}

// Python: [int(round(b * n)) for b in (0, .5, .75, 1)] rounds 2.5 to 2 and 7.5 to 8.
TEST(RangeOf, RoundsHalfToEven) {
  const SplitShares shares = *ParseSplit("2,1,1");
  EXPECT_EQ(RangeOf(shares, SplitPart::kTraining, 5).end, 2);
  EXPECT_EQ(RangeOf(shares, SplitPart::kValidation, 10).begin, 5);
  EXPECT_EQ(RangeOf(shares, SplitPart::kValidation, 10).end, 8);
  EXPECT_EQ(RangeOf(shares, SplitPart::kTest, 10).begin, 8);
  EXPECT_EQ(RangeOf(shares, SplitPart::kTest, 10).end, 10);
}

TEST(RangeOf, PartsAreDisjointAndComplete) {
  const SplitShares shares = *ParseSplit("969,30,1");
  for (int64_t count = 0; count < 3000; ++count) {
    EXPECT_EQ(RangeOf(shares, SplitPart::kTraining, count).begin, 0);
    EXPECT_EQ(RangeOf(shares, SplitPart::kTraining, count).end, RangeOf(shares, SplitPart::kValidation, count).begin);
    EXPECT_EQ(RangeOf(shares, SplitPart::kValidation, count).end, RangeOf(shares, SplitPart::kTest, count).begin);
    EXPECT_EQ(RangeOf(shares, SplitPart::kTest, count).end, count);
  }
}

}  // namespace
}  // namespace slipway::engine::corpus
