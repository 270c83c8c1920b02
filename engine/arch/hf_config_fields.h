// Typed access to a JSON object of a config.json. Internal to engine/arch. Not thread-safe.
#ifndef SLIPWAY_ENGINE_ARCH_HF_CONFIG_FIELDS_H_
#define SLIPWAY_ENGINE_ARCH_HF_CONFIG_FIELDS_H_

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/fault.h"

namespace slipway::engine::arch {

inline std::string Shown(const nlohmann::ordered_json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

// Typed access to one JSON object; what is wrong is collected under `prefix` + key.
class Fields {
  using Json = nlohmann::ordered_json;

 public:
  Fields(const Json& object, std::string prefix, std::vector<Fault>& faults)
      : object_(object), prefix_(std::move(prefix)), faults_(faults) {}

  // The value of a key, or null when it is absent or JSON null (transformers writes null for "not set").
  const Json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void Add(const char* key, std::string message) {
    const Json* value = Find(key);
    faults_.push_back({prefix_ + key, value == nullptr ? "" : Shown(*value), std::move(message)});
  }

  std::optional<int64_t> Int(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!IsInt64(*value)) {
      Add(key, "must be an integer");
      return std::nullopt;
    }
    return value->get<int64_t>();
  }

  std::optional<double> Number(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      Add(key, "must be a finite number");
      return std::nullopt;
    }
    return value->get<double>();
  }

  std::optional<bool> Bool(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) {
      Add(key, "must be true or false");
      return std::nullopt;
    }
    return value->get<bool>();
  }

  std::optional<std::string> String(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) {
      Add(key, "must be a string");
      return std::nullopt;
    }
    return value->get<std::string>();
  }

  // As above, and absence is a fault.
  int64_t RequiredInt(const char* key) {
    if (Find(key) == nullptr) Add(key, "is missing; the model's output depends on it");
    return Int(key).value_or(0);
  }

  double RequiredNumber(const char* key) {
    if (Find(key) == nullptr) Add(key, "is missing; the model's output depends on it");
    return Number(key).value_or(0);
  }

  static bool IsInt64(const Json& value) {
    return value.is_number_integer() &&
           !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  }

 private:
  const Json& object_;
  const std::string prefix_;
  std::vector<Fault>& faults_;
};

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_HF_CONFIG_FIELDS_H_
