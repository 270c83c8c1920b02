#include "engine/spec/spec_overrides.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/str_cat.h"
#include "engine/spec/field_reader.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct Override {
  FieldPath field;
  std::string location;
  bool reset = false;
  YamlNode value;
};

bool IsText(const FieldPath& field) {
  return field.map_key.has_value() ||
         (!field.field()->is_repeated() && field.field()->cpp_type() == FieldDescriptor::CPPTYPE_STRING);
}

bool IsQuotedWhole(std::string_view text) {
  return text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.front() == text.back();
}

std::optional<YamlNode> ParseValue(const Override& parsed, std::string_view text, SpecFaults* faults) {
  const auto add = [&](std::string message) {
    faults->push_back({.location = parsed.location, .path = parsed.field.path, .message = std::move(message)});
  };
  if (IsText(parsed.field) && !IsQuotedWhole(text)) {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.value = std::string(text);
    if (IsValidUtf8(text)) return node;
    add("the value is not UTF-8 text");
    return std::nullopt;
  }
  if (text.empty()) {
    add("a value is missing after `=`; `null` resets the field");
    return std::nullopt;
  }
  YamlTree tree = ParseYamlOrJson(text, "value");
  if (tree.faults.empty()) return std::move(tree.root);
  for (const SpecFault& fault : tree.faults) add(fault.message);
  return std::nullopt;
}

std::optional<Override> ParseOverride(std::string_view text, size_t index, SpecFaults* faults) {
  Override parsed;
  parsed.location = StrCat("--set #", index + 1);
  const auto add = [&](std::string path, std::string message) {
    faults->push_back({.location = parsed.location, .path = std::move(path), .message = std::move(message)});
  };
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    add("", StrCat("expected section.key=value, got `", text, "`"));
    return std::nullopt;
  }
  const std::string_view path = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);
  auto field = FindField(path);
  if (!field.ok()) {
    add(std::string(path), std::string(field.status().message()));
    return std::nullopt;
  }
  parsed.field = *std::move(field);
  parsed.reset = value == "null" || value == "~";
  if (parsed.reset) return parsed;
  std::optional<YamlNode> node = ParseValue(parsed, value, faults);
  if (!node) return std::nullopt;
  parsed.value = *std::move(node);
  return parsed;
}

// On a copy: a value that cannot be read leaves nothing behind, not even an empty section.
bool Assign(const Override& parsed, v1::TrainingSpec* spec, SpecFaults* faults, SpecLocations* locations) {
  v1::TrainingSpec copy = *spec;
  Message* holder = &copy;
  for (size_t i = 0; i + 1 < parsed.field.fields.size(); ++i) {
    holder = holder->GetReflection()->MutableMessage(holder, parsed.field.fields[i]);
  }
  const size_t before = faults->size();
  FieldReader reader("value", parsed.location, faults, locations);
  if (parsed.field.map_key) {
    reader.ReadMapEntry(parsed.value, parsed.field.path, parsed.field.field(), *parsed.field.map_key, holder);
  } else {
    reader.ReadField(parsed.value, parsed.field.path, parsed.field.field(), holder);
  }
  if (faults->size() != before) return false;
  if (locations != nullptr) (*locations)[parsed.field.path] = parsed.location;
  *spec = std::move(copy);
  return true;
}

// True when clearing `cleared` also clears `path`, or the other way round.
bool Overlaps(std::string_view cleared, std::string_view path) {
  const std::string_view shorter = cleared.size() < path.size() ? cleared : path;
  const std::string_view longer = cleared.size() < path.size() ? path : cleared;
  return longer.substr(0, shorter.size()) == shorter &&
         (longer.size() == shorter.size() || longer[shorter.size()] == '.');
}

}  // namespace

SpecFaults ApplyOverrides(absl::Span<const std::string> overrides, v1::TrainingSpec* spec, SpecLocations* locations) {
  SpecFaults faults;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::optional<Override> parsed = ParseOverride(overrides[i], i, &faults);
    if (!parsed) continue;
    if (parsed->reset) {
      ClearField(spec, parsed->field);
      if (locations != nullptr) (*locations)[parsed->field.path] = parsed->location;
    } else {
      Assign(*parsed, spec, &faults, locations);
    }
  }
  return faults;
}

SpecPatch PatchFromOverrides(absl::Span<const std::string> overrides) {
  SpecPatch patch;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::optional<Override> parsed = ParseOverride(overrides[i], i, &patch.faults);
    if (!parsed) continue;
    const std::string& path = parsed->field.path;
    if (parsed->reset) {
      ClearField(&patch.patch, parsed->field);
      patch.clear_paths.push_back(path);
    } else if (Assign(*parsed, &patch.patch, &patch.faults, nullptr)) {
      // A later value wins over an earlier reset of the same field; one of its whole section is kept: the reset comes
      // first.
      std::erase_if(patch.clear_paths, [&](const std::string& cleared) {
        return cleared.size() >= path.size() && Overlaps(cleared, path);
      });
    }
  }
  return patch;
}

}  // namespace slipway::engine::spec
