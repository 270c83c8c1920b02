// JSON from outside: parsed without exceptions and without trusting its depth. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_TOKENIZER_JSON_TEXT_H_
#define SLIPWAY_ENGINE_TOKENIZER_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace slipway::engine::tokenizer {

// Keeps the order of members: chat templates print objects in it.
using Json = nlohmann::ordered_json;

// Arrays and objects may be nested this deep; deeper text is refused before anything recurses into it.
inline constexpr int kMaxJsonDepth = 100;

// InvalidArgument says what is wrong and at which column (byte, from 1). Strings must be valid UTF-8.
absl::StatusOr<Json> ParseJson(std::string_view text);

// "null", "true", a number or the beginning of a text: for error messages that show a value.
std::string ShowJson(const Json& value);

}  // namespace slipway::engine::tokenizer

#endif  // SLIPWAY_ENGINE_TOKENIZER_JSON_TEXT_H_
