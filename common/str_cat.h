// absl::StrCat for std::string_view. Debian builds Abseil with a string_view type of its own, so absl::StrCat refuses
// the standard one; this one takes both, and everything else that absl::StrCat takes.
#ifndef SLIPWAY_COMMON_STR_CAT_H_
#define SLIPWAY_COMMON_STR_CAT_H_

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slipway {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

namespace str_cat_internal {
template <typename T>
decltype(auto) Argument(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}
}  // namespace str_cat_internal

template <typename... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(str_cat_internal::Argument(args)...);
}

}  // namespace slipway

#endif  // SLIPWAY_COMMON_STR_CAT_H_
