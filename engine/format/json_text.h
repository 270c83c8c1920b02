// Strict JSON from files that others wrote. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_FORMAT_JSON_TEXT_H_
#define SLIPWAY_ENGINE_FORMAT_JSON_TEXT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::engine::format {

// InvalidArgument naming `source` for text that is no JSON, nests deeper than 32, or gives a key twice.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& source);

// Reads the fields of one object; every field must be there, have its type, and be asked for.
class JsonFields {
 public:
  // `path` names the object in errors. `object` must outlive this.
  JsonFields(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool Has(const char* key) const { return object_.is_object() && object_.contains(key); }
  absl::StatusOr<int64_t> Integer(const char* key);
  // An integer that must not be negative.
  absl::StatusOr<int64_t> Count(const char* key);
  absl::StatusOr<std::string> String(const char* key);
  absl::StatusOr<const nlohmann::json*> Object(const char* key);
  absl::StatusOr<const nlohmann::json*> List(const char* key);
  absl::StatusOr<std::vector<int64_t>> Integers(const char* key);
  // InvalidArgument when the object has a field that nobody asked for.
  absl::Status CheckAllRead() const;
  absl::Status Refuse(const char* key, std::string_view why) const;

 private:
  absl::StatusOr<const nlohmann::json*> Get(const char* key);

  const nlohmann::json& object_;
  const std::string path_;
  std::set<std::string> read_;
};

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_JSON_TEXT_H_
