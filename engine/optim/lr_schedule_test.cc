#include "engine/optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/status_matchers.h"

namespace slipway::engine::optim {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

LrScheduleOptions Cosine() {
  return {.style = LrDecayStyle::kCosine, .max_lr = 1e-3, .min_lr = 1e-4, .warmup_iters = 10, .decay_iters = 100};
}

// Case R8: step k trains at lr(k - 1), so step 1 at 0 and step 51 at lr(50).
TEST(LearningRate, R8CosineWithWarmup) {
  const LrScheduleOptions options = Cosine();
  ASSERT_OK(Validate(options));
  EXPECT_EQ(LearningRate(options, 0), 0.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 5.0e-4);
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 1.0e-3);
  EXPECT_NEAR(LearningRate(options, 50), 6.2814e-4, 5e-9);
  EXPECT_NEAR(LearningRate(options, 51), 6.1263e-4, 5e-9);
  EXPECT_DOUBLE_EQ(LearningRate(options, 100), 1.0e-4);
  EXPECT_DOUBLE_EQ(LearningRate(options, 101), 1.0e-4);
  LrScheduleOptions longer = options;
  longer.decay_iters = 200;
  EXPECT_NEAR(LearningRate(longer, 50), 9.0511e-4, 5e-9);
}

TEST(LearningRate, WarmupStartsWhereItIsTold) {
  LrScheduleOptions options = Cosine();
  options.init_lr = 2e-4;
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 2e-4);
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 6e-4);
}

TEST(LearningRate, OtherStyles) {
  LrScheduleOptions options = Cosine();
  options.style = LrDecayStyle::kLinear;
  EXPECT_DOUBLE_EQ(LearningRate(options, 55), 5.5e-4);
  options.style = LrDecayStyle::kConstant;
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1000), 1e-3);
  options.style = LrDecayStyle::kInverseSquareRoot;
  EXPECT_DOUBLE_EQ(LearningRate(options, 40), 5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(options, 90), 1e-3 / 3);
  options.decay_iters = 10000;
  EXPECT_DOUBLE_EQ(LearningRate(options, 9000), 1e-4);  // not below the minimum
}

TEST(LearningRate, WarmupStableDecay) {
  LrScheduleOptions options = Cosine();
  options.style = LrDecayStyle::kWarmupStableDecay;
  options.wsd_decay_iters = 20;
  const auto at_middle = [&](WsdDecayStyle style) {
    options.wsd_style = style;
    EXPECT_DOUBLE_EQ(LearningRate(options, 80), 1e-3);
    EXPECT_NEAR(LearningRate(options, 100), 1e-4, 1e-15);
    return (LearningRate(options, 90) - 1e-4) / 9e-4;
  };
  EXPECT_NEAR(at_middle(WsdDecayStyle::kExponential), 2 * std::sqrt(0.5) - 1, 1e-12);
  EXPECT_NEAR(at_middle(WsdDecayStyle::kLinear), 0.5, 1e-12);
  EXPECT_NEAR(at_middle(WsdDecayStyle::kCosine), 0.5, 1e-12);
  EXPECT_NEAR(at_middle(WsdDecayStyle::kMinusSquareRoot), 1 - std::sqrt(0.5), 1e-12);
}

TEST(LearningRate, NamesAndBadOptions) {
  EXPECT_EQ(LrDecayStyleFromName("inverse-square-root"), LrDecayStyle::kInverseSquareRoot);
  EXPECT_EQ(LrDecayStyleFromName("WSD"), LrDecayStyle::kWarmupStableDecay);
  EXPECT_EQ(LrDecayStyleFromName("step"), std::nullopt);
  EXPECT_EQ(WsdDecayStyleFromName("minus_sqrt"), WsdDecayStyle::kMinusSquareRoot);
  LrScheduleOptions options = Cosine();
  options.warmup_iters = 100;
  EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("warmup of 100")));
  options = Cosine();
  options.min_lr = 1;
  EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must not be above max")));
  options = Cosine();
  options.max_lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("finite")));
  options = Cosine();
  options.style = LrDecayStyle::kWarmupStableDecay;
  options.wsd_decay_iters = 101;
  EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WSD decay of 101")));
}

}  // namespace
}  // namespace slipway::engine::optim
