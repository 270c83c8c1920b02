#include "engine/spec/spec_writer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "engine/spec/spec_fields.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

std::string JsonString(const std::string& value) {
  return Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// True where YAML (1.1 or 1.2, by any reader) takes the plain text for this string and nothing else.
bool IsPlainSafe(std::string_view text) {
  if (text.empty() || text.size() > 200) return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && std::string_view("_-./+@ ").find(c) == std::string_view::npos) return false;
  }
  if (!absl::ascii_isalpha(text.front()) && text.front() != '/' && text.front() != '_') return false;
  if (text.back() == ' ') return false;
  static constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  for (const std::string_view word : kWords) {
    if (absl::EqualsIgnoreCase(ToAbsl(text), ToAbsl(word))) return false;
  }
  return true;
}

std::string YamlScalar(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return StrCat(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return StrCat(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      // YAML 1.1 readers take 1e-05 for text: they want a dot and a signed exponent.
      std::string text = DoubleText(reflection->GetDouble(message, field));
      const size_t exponent = text.find('e');
      if (exponent != std::string::npos && !absl::StrContains(text, ".")) text.insert(exponent, ".0");
      return text;
    }
    default:
      return YamlString(reflection->GetString(message, field));
  }
}

Json JsonScalar(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->GetDouble(message, field);
    default:
      return reflection->GetString(message, field);
  }
}

std::map<std::string, std::string> MapOf(const Message& message, const FieldDescriptor* field) {
  std::map<std::string, std::string> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, field, i);
    entries[entry.GetReflection()->GetString(entry, entry.GetDescriptor()->map_key())] =
        entry.GetReflection()->GetString(entry, entry.GetDescriptor()->map_value());
  }
  return entries;
}

void WriteYaml(const Message& message, int indent, std::string* out) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  const Reflection* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_map()) {
      const std::map<std::string, std::string> entries = MapOf(message, field);
      if (!entries.empty()) absl::StrAppend(out, margin, field->name(), ":\n");
      for (const auto& [key, value] : entries) {
        absl::StrAppend(out, margin, "  ", YamlString(key), ": ", YamlString(value), "\n");
      }
    } else if (IsList(field)) {
      const std::vector<std::string> items = ListOf(message, field);
      const auto append = [](std::string* to, const std::string& item) { to->append(YamlString(item)); };
      if (!items.empty()) absl::StrAppend(out, margin, field->name(), ": [", absl::StrJoin(items, ", ", append), "]\n");
    } else if (!reflection->HasField(message, field)) {
      continue;
    } else if (IsSection(field)) {
      std::string body;
      WriteYaml(reflection->GetMessage(message, field), indent + 2, &body);
      // An empty section is still one that is there.
      absl::StrAppend(out, margin, field->name(), body.empty() ? ": {}\n" : ":\n", body);
    } else {
      absl::StrAppend(out, margin, field->name(), ": ", YamlScalar(message, field), "\n");
    }
  }
}

Json ToJson(const Message& message) {
  Json json = Json::object();
  const Reflection* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_map()) {
      const std::map<std::string, std::string> entries = MapOf(message, field);
      for (const auto& [key, value] : entries) json[field->name()][key] = value;
    } else if (IsList(field)) {
      const std::vector<std::string> items = ListOf(message, field);
      if (!items.empty()) json[field->name()] = items;
    } else if (reflection->HasField(message, field)) {
      json[field->name()] =
          IsSection(field) ? ToJson(reflection->GetMessage(message, field)) : JsonScalar(message, field);
    }
  }
  return json;
}

}  // namespace

// A JSON string is a YAML double-quoted scalar.
std::string YamlString(const std::string& value) { return IsPlainSafe(value) ? value : JsonString(value); }

std::string SpecToYaml(const v1::TrainingSpec& spec) {
  std::string text;
  WriteYaml(spec, 0, &text);
  return text.empty() ? "{}\n" : text;
}

std::string SpecToJson(const v1::TrainingSpec& spec) {
  return StrCat(ToJson(spec).dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace slipway::engine::spec
