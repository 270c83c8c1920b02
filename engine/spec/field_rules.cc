#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_rules.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::FieldDescriptor;

constexpr size_t kMaxTextBytes = 4096;  // the longest path that Linux opens
constexpr size_t kMaxEntries = 256;
constexpr size_t kMaxEnvBytes = 32768;
constexpr size_t kMaxLabelBytes = 256;

bool HasControlCharacter(std::string_view text) {
  return absl::c_any_of(text, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

// Quoted, with control characters and bytes that are no text escaped, and cut.
std::string Shown(const std::string& value) {
  return YamlString(value.size() > 100 ? StrCat(value.substr(0, 100), "…") : value);
}

void CheckNumber(const FieldPath& field, const std::string& text, SpecFaults* faults) {
  const v1::FieldMeta& meta = MetaOf(field.field());
  const double value = std::stod(text);
  const auto add = [&](std::string message) {
    faults->push_back({.path = field.path, .value = text, .message = std::move(message)});
  };
  if (!std::isfinite(value)) return add("must be a finite number");
  if (meta.has_min() && (meta.exclusive_min() ? value <= meta.min() : value < meta.min())) {
    return add(StrCat("must be ", meta.exclusive_min() ? "above " : "at least ", DoubleText(meta.min())));
  }
  if (meta.has_max() && value > meta.max()) add(StrCat("must be at most ", DoubleText(meta.max())));
}

void CheckPath(const FieldPath& field, const std::string& value, const ValidateOptions& options, SpecFaults* faults) {
  if (options.require_absolute_paths && !absl::StartsWith(value, "/")) {
    faults->push_back({.path = field.path, .value = Shown(value), .message = "must be an absolute path on the nodes"});
  }
}

void CheckText(const FieldPath& field, const std::string& value, const ValidateOptions& options, SpecFaults* faults) {
  const v1::FieldMeta& meta = MetaOf(field.field());
  const auto add = [&](std::string message) {
    faults->push_back({.path = field.path, .value = Shown(value), .message = std::move(message)});
  };
  const bool is_name = field.path == "name" || field.path == "project";
  if (is_name) {
    if (std::string fault = NameFault(value); !fault.empty()) add(std::move(fault));
    return;
  }
  if (value.empty()) return add("must not be empty; null resets it");
  if (value.size() > kMaxTextBytes) return add(StrCat("is ", value.size(), " bytes long; at most ", kMaxTextBytes));
  if (HasControlCharacter(value) || !IsValidUtf8(value)) return add("must be UTF-8 text without control characters");
  if (!meta.choices().empty() && !absl::c_linear_search(meta.choices(), value)) {
    const std::vector<std::string> choices(meta.choices().begin(), meta.choices().end());
    const auto nearest = NearestKey(value, choices);
    return add(StrCat("must be one of ", absl::StrJoin(choices, ", "),
                      nearest ? StrCat("; did you mean `", *nearest, "`?") : ""));
  }
  if (!meta.path_kind().empty()) CheckPath(field, value, options, faults);
}

// Every item by itself, and none twice.
void CheckList(const v1::TrainingSpec& spec, const FieldPath& field, const ValidateOptions& options,
               SpecFaults* faults) {
  std::set<std::string> seen;
  for (const std::string& item : ItemsOf(spec, field)) {
    CheckText(field, item, options, faults);
    if (!seen.insert(item).second) {
      faults->push_back({.path = field.path, .value = Shown(item), .message = "is given twice"});
    }
  }
}

bool IsEnvName(std::string_view name) {
  return !name.empty() && (absl::ascii_isalpha(name[0]) || name[0] == '_') &&
         absl::c_all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

bool IsLabelKey(std::string_view key) {
  return !key.empty() && key.size() <= 63 && absl::ascii_isalnum(key.front()) && absl::ascii_isalnum(key.back()) &&
         absl::c_all_of(key, [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-._/", c); });
}

template <typename Map>
std::map<std::string, std::string> Sorted(const Map& map) {
  return {map.begin(), map.end()};
}

void CheckEnv(const v1::TrainingSpec& spec, SpecFaults* faults) {
  if (spec.env_size() > static_cast<int>(kMaxEntries)) {
    faults->push_back({.path = "env", .message = StrCat("has ", spec.env_size(), " entries; at most ", kMaxEntries)});
  }
  for (const auto& [name, value] : Sorted(spec.env())) {
    const std::string path = StrCat("env.", IsEnvName(name) ? name : Shown(name));
    if (!IsEnvName(name)) {
      faults->push_back(
          {.path = path, .message = "a variable's name has letters, digits and `_` and does not start with a digit"});
    } else if (absl::StartsWith(name, "SLIPWAY_")) {
      faults->push_back({.path = path, .message = "names that start with SLIPWAY_ are Slipway's own"});
    } else if (value.size() > kMaxEnvBytes || absl::StrContains(value, '\0')) {
      faults->push_back(
          {.path = path, .message = StrCat("a value has at most ", kMaxEnvBytes, " bytes, none of them zero")});
    }
  }
}

void CheckLabels(const v1::TrainingSpec& spec, SpecFaults* faults) {
  if (spec.labels_size() > static_cast<int>(kMaxEntries)) {
    faults->push_back(
        {.path = "labels", .message = StrCat("has ", spec.labels_size(), " entries; at most ", kMaxEntries)});
  }
  for (const auto& [key, value] : Sorted(spec.labels())) {
    const std::string path = StrCat("labels.", IsLabelKey(key) ? key : Shown(key));
    if (!IsLabelKey(key)) {
      faults->push_back(
          {.path = path,
           .message = "a label's key has 1 to 63 letters, digits and `-._/`, with a letter or digit at both ends"});
    } else if (value.size() > kMaxLabelBytes || HasControlCharacter(value) || !IsValidUtf8(value)) {
      faults->push_back({.path = path,
                         .value = Shown(value),
                         .message = StrCat("a label has at most ", kMaxLabelBytes,
                                           " bytes of UTF-8 text without control characters")});
    }
  }
}

}  // namespace

std::string NameFault(std::string_view name) {
  constexpr size_t kMaxNameBytes = 63;
  const auto is_edge = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  const bool ok = !name.empty() && name.size() <= kMaxNameBytes && is_edge(name.front()) && is_edge(name.back()) &&
                  absl::c_all_of(name, [&](char c) { return is_edge(c) || absl::StrContains("-._", c); });
  if (ok) return "";
  return StrCat("must have 1 to ", kMaxNameBytes,
                " lower-case letters, digits, `-`, `.` or `_`, with a letter or digit at both ends");
}

void CheckFields(const v1::TrainingSpec& spec, const ValidateOptions& options, SpecFaults* faults) {
  for (const FieldPath& field : AllFields()) {
    if (field.field()->is_map()) continue;
    if (!HasValue(spec, field)) {
      const bool in_optional_section = field.fields.size() > 2;
      const bool section_given = !in_optional_section || spec.model().has_rope_scaling();
      if (MetaOf(field.field()).required() && section_given)
        faults->push_back({.path = field.path, .message = "is required"});
      continue;
    }
    if (IsList(field.field())) {
      CheckList(spec, field, options, faults);
      continue;
    }
    const std::string text = ValueText(spec, field);
    if (field.field()->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      CheckText(field, text, options, faults);
    } else if (field.field()->cpp_type() != FieldDescriptor::CPPTYPE_BOOL) {
      CheckNumber(field, text, faults);
    }
  }
  CheckEnv(spec, faults);
  CheckLabels(spec, faults);
}

}  // namespace slipway::engine::spec
