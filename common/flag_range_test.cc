#include "common/flag_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

namespace slipway {
namespace {

// What is wrong with `--flag text`; empty when it is taken.
template <typename Number>
std::string Refusal(const CLI::Validator& range, const std::string& text, Number* value) {
  CLI::App app;
  app.add_option("--flag", *value)->check(range);
  try {
    app.parse({text, "--flag"});  // from the back
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagRangeTest, NumbersAreFiniteAndInTheirRange) {
  double value = 0;
  const CLI::Validator share = NumberIn({.min = 0, .max = 1, .exclusive_min = true});
  EXPECT_EQ(Refusal(share, "0.25", &value), "");
  EXPECT_EQ(value, 0.25);
  EXPECT_EQ(Refusal(share, "1", &value), "");
  for (const char* text : {"0", "2", "-1", "nan", "NaN", "inf", "-inf", "1e999", "0.5x", "", "half"}) {
    EXPECT_EQ(Refusal(share, text, &value), std::string("--flag: ") + text + ": expected a number above 0, at most 1");
  }
  EXPECT_EQ(Refusal(NumberIn({.min = 0}), "0", &value), "");
  EXPECT_EQ(Refusal(NumberIn({.min = 0}), "inf", &value), "--flag: inf: expected a number from 0 on");
  EXPECT_EQ(Refusal(NumberIn({.min = 0, .exclusive_min = true}), "0", &value), "--flag: 0: expected a number above 0");
}

TEST(FlagRangeTest, WholeNumbersAreWhole) {
  int64_t value = 0;
  EXPECT_EQ(Refusal(WholeNumberIn(0), "9223372036854775807", &value), "");
  EXPECT_EQ(value, std::numeric_limits<int64_t>::max());
  for (const char* text : {"-1", "11", "1.5", "1e1", "9223372036854775808", "nan", "x"}) {
    EXPECT_EQ(Refusal(WholeNumberIn(0, 10), text, &value),
              std::string("--flag: ") + text + ": expected a whole number from 0 to 10");
  }
}

}  // namespace
}  // namespace slipway
