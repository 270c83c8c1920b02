#include "engine/tokenizer/json_text.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace slipway::engine::tokenizer {
namespace {

// The byte at which the text goes deeper than kMaxJsonDepth, or npos.
size_t TooDeepAt(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::string_view::npos;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  if (const size_t at = TooDeepAt(text); at != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON is nested more than ", kMaxJsonDepth, " levels deep at column ", at + 1));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while parsing …"
    std::string_view what = e.what();
    if (const size_t bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: ", std::string(what.substr(0, 300))));
  }
}

std::string ShowJson(const Json& value) {
  constexpr size_t kMaxShown = 60;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMaxShown) return text;
  size_t cut = kMaxShown;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
  return text.substr(0, cut) + "…";
}

}  // namespace slipway::engine::tokenizer
