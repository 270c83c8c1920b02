#include "engine/format/json_text.h"

#include <limits>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::format {
namespace {

constexpr int kMaxDepth = 32;

// Depth is checked before the library builds a tree of the text.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

bool FitsInt64(const nlohmann::json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& source) {
  if (NestsTooDeep(text)) return absl::InvalidArgumentError(absl::StrCat(source, ": nested deeper than ", kMaxDepth));
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::object_start) keys.emplace_back();
    if (event == nlohmann::json::parse_event_t::object_end) keys.pop_back();
    if (event == nlohmann::json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(source, ": not valid JSON"));
  if (!duplicate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": the key \"", duplicate, "\" is given twice"));
  }
  return value;
}

absl::Status JsonFields::Refuse(const char* key, std::string_view why) const {
  return absl::InvalidArgumentError(StrCat(path_, ": field \"", key, "\" ", why));
}

absl::StatusOr<const nlohmann::json*> JsonFields::Get(const char* key) {
  if (!object_.is_object()) return absl::InvalidArgumentError(absl::StrCat(path_, ": an object is expected"));
  const auto found = object_.find(key);
  if (found == object_.end()) return Refuse(key, "is missing");
  read_.insert(key);
  return &*found;
}

absl::StatusOr<int64_t> JsonFields::Integer(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* value, Get(key));
  if (!FitsInt64(*value)) return Refuse(key, "must be an integer");
  return value->get<int64_t>();
}

absl::StatusOr<int64_t> JsonFields::Count(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const int64_t value, Integer(key));
  if (value < 0) return Refuse(key, absl::StrCat("is ", value, " and must not be negative"));
  return value;
}

absl::StatusOr<std::string> JsonFields::String(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* value, Get(key));
  if (!value->is_string()) return Refuse(key, "must be a string");
  return value->get<std::string>();
}

absl::StatusOr<const nlohmann::json*> JsonFields::Object(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* value, Get(key));
  if (!value->is_object()) return Refuse(key, "must be an object");
  return value;
}

absl::StatusOr<const nlohmann::json*> JsonFields::List(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* value, Get(key));
  if (!value->is_array()) return Refuse(key, "must be a list");
  return value;
}

absl::StatusOr<std::vector<int64_t>> JsonFields::Integers(const char* key) {
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* list, List(key));
  std::vector<int64_t> values;
  for (const nlohmann::json& value : *list) {
    if (!FitsInt64(value)) return Refuse(key, "must be a list of integers");
    values.push_back(value.get<int64_t>());
  }
  return values;
}

absl::Status JsonFields::CheckAllRead() const {
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) return Refuse(key.c_str(), "is unknown");
  }
  return absl::OkStatus();
}

}  // namespace slipway::engine::format
