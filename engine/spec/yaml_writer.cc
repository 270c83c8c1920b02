#include "engine/spec/yaml_writer.h"

#include "common/str_cat.h"
#include "engine/spec/spec_writer.h"

namespace slipway::engine::spec {
namespace {

using Json = nlohmann::ordered_json;

std::string Scalar(const Json& json) { return json.is_string() ? YamlString(json.get<std::string>()) : json.dump(); }

void Write(const Json& json, const std::string& margin, std::string* out) {
  const auto write_value = [&](const Json& value) {
    if (value.is_structured() && !value.empty()) {
      absl::StrAppend(out, "\n");
      Write(value, StrCat(margin, "  "), out);
    } else {
      absl::StrAppend(out, " ", Scalar(value), "\n");
    }
  };
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      absl::StrAppend(out, margin, YamlString(key), ":");
      write_value(value);
    }
  } else {
    for (const Json& value : json) {
      absl::StrAppend(out, margin, "-");
      write_value(value);
    }
  }
}

}  // namespace

std::string JsonToYaml(const Json& json) {
  if (!json.is_structured() || json.empty()) return StrCat(Scalar(json), "\n");
  std::string text;
  Write(json, "", &text);
  return text;
}

}  // namespace slipway::engine::spec
