#include "common/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace slipway {
namespace {

using ::testing::Eq;
using ::testing::Optional;

TEST(NearestKeyTest, FindsWhatWasMeant) {
  const std::vector<std::string> keys = {"seed", "seq_length", "micro_batch_size", "global_batch_size", "lr"};
  EXPECT_THAT(NearestKey("sed", keys), Optional(Eq("seed")));
  EXPECT_THAT(NearestKey("SEED", keys), Optional(Eq("seed")));
  EXPECT_THAT(NearestKey("esed", keys), Optional(Eq("seed")));
  EXPECT_THAT(NearestKey("micro_batchsize", keys), Optional(Eq("micro_batch_size")));
  EXPECT_THAT(NearestKey("globl_batch_sise", keys), Optional(Eq("global_batch_size")));
  EXPECT_THAT(NearestKey("lr", keys), Optional(Eq("lr")));
}

TEST(NearestKeyTest, SaysNothingWhenNothingIsNear) {
  const std::vector<std::string> keys = {"seed", "seq_length"};
  EXPECT_EQ(NearestKey("optimizer", keys), std::nullopt);
  EXPECT_EQ(NearestKey("", keys), std::nullopt);
  EXPECT_EQ(NearestKey("seed", {}), std::nullopt);
  EXPECT_EQ(NearestKey(std::string(100000, 'x'), keys), std::nullopt);
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(FormatBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(FormatElapsedTest, PicksTheUnit) {
  EXPECT_EQ(FormatElapsed(absl::Milliseconds(250)), "0.25s");
  EXPECT_EQ(FormatElapsed(absl::Milliseconds(12340)), "12.3s");
  EXPECT_EQ(FormatElapsed(absl::Milliseconds(59980)), "1m00s");
  EXPECT_EQ(FormatElapsed(absl::Seconds(245)), "4m05s");
  EXPECT_EQ(FormatElapsed(absl::Minutes(127)), "2h07m");
  EXPECT_EQ(FormatElapsed(absl::Hours(76)), "3d04h");
  EXPECT_EQ(FormatElapsed(-absl::Seconds(245)), "-4m05s");
  EXPECT_EQ(FormatElapsed(absl::InfiniteDuration()), "forever");
  EXPECT_EQ(FormatElapsed(-absl::InfiniteDuration()), "-forever");
}

}  // namespace
}  // namespace slipway
