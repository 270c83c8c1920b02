#include "common/flag_range.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slipway {
namespace {

// True when all of `text` is a number of the type.
template <typename Number>
bool Parse(const std::string& text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

CLI::Validator Refusing(std::string allowed, std::function<bool(const std::string&)> is_allowed) {
  return CLI::Validator(
      [allowed, is_allowed = std::move(is_allowed)](std::string& text) {
        return is_allowed(text) ? std::string() : absl::StrCat(text, ": expected ", allowed);
      },
      "", "");
}

}  // namespace

CLI::Validator NumberIn(const NumberRange& range) {
  std::string allowed = absl::StrCat("a number ", range.exclusive_min ? "above " : "from ", range.min);
  absl::StrAppend(&allowed, range.max == std::numeric_limits<double>::max()
                                ? (range.exclusive_min ? "" : " on")
                                : absl::StrCat(range.exclusive_min ? ", at most " : " to ", range.max));
  return Refusing(std::move(allowed), [range](const std::string& text) {
    double value = 0;
    return Parse(text, &value) && std::isfinite(value) && value <= range.max &&
           (range.exclusive_min ? value > range.min : value >= range.min);
  });
}

CLI::Validator WholeNumberIn(int64_t min, int64_t max) {
  std::string allowed = absl::StrCat("a whole number from ", min, " to ", max);
  return Refusing(std::move(allowed), [min, max](const std::string& text) {
    int64_t value = 0;
    return Parse(text, &value) && value >= min && value <= max;
  });
}

}  // namespace slipway
