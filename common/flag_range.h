// Ranges of numeric flags. They are checked on the text, before CLI11 converts it: unlike CLI11's own checks they
// refuse NaN and infinity, and every refusal names the flag, what was given and what is allowed. Thread-safe: pure
// functions.
#ifndef SLIPWAY_COMMON_FLAG_RANGE_H_
#define SLIPWAY_COMMON_FLAG_RANGE_H_

#include <CLI/App.hpp>  // Validators.hpp alone does not compile
#include <cstdint>
#include <limits>

namespace slipway {

struct NumberRange {
  double min = 0;
  double max = std::numeric_limits<double>::max();
  bool exclusive_min = false;
};

// app.add_option("--top-p", …)->check(NumberIn({.min = 0, .max = 1, .exclusive_min = true})), for a double.
CLI::Validator NumberIn(const NumberRange& range);
// For an integer that holds `max`.
CLI::Validator WholeNumberIn(int64_t min, int64_t max = std::numeric_limits<int64_t>::max());

}  // namespace slipway

#endif  // SLIPWAY_COMMON_FLAG_RANGE_H_
