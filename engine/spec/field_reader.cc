#include "engine/spec/field_reader.h"

#include <charconv>
#include <limits>
#include <map>
#include <system_error>

#include "common/str_cat.h"
#include "engine/spec/spec_fields.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Kind = YamlNode::Kind;

std::string JoinKey(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : StrCat(path, ".", key);
}

// Empty when `text` is a whole number of the type, else what was expected.
template <typename Integer>
std::string ParseInteger(std::string_view text, Integer* out) {
  const std::string_view digits = text.starts_with("-") ? text.substr(1) : text;
  if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0123456789") == std::string_view::npos) {
    return "expected a whole number without leading zeros";
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc::result_out_of_range && end == text.data() + text.size()) {
    return StrCat("expected a whole number of ", 8 * sizeof(Integer), " bits, at most ",
                  std::numeric_limits<Integer>::max());
  }
  if (error != std::errc() || end != text.data() + text.size()) return "expected a whole number";
  return "";
}

std::string ParseDouble(std::string_view text, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::result_out_of_range && whole) return "expected a number that fits a 64-bit float";
  // from_chars also takes "nan" and "infinity".
  if (error != std::errc() || !whole || text.find_first_of("nN") != std::string_view::npos) return "expected a number";
  return "";
}

}  // namespace

std::string FieldReader::Place(const YamlNode& node) const {
  return fixed_location_.empty() ? LocationText(name_, node) : fixed_location_;
}

void FieldReader::Add(const YamlNode& node, const std::string& path, std::string message) {
  faults_->push_back({.location = Place(node), .path = path, .message = std::move(message)});
}

bool FieldReader::CheckKey(const YamlNode& key, const std::string& path) {
  if (key.kind != Kind::kScalar) {
    Add(key, path, StrCat("expected a key, got ", NodeText(key)));
    return false;
  }
  if (key.value == "<<" && !key.quoted) {
    Add(key, path, "merge keys (`<<`) are not supported; write the values out");
    return false;
  }
  return true;
}

void FieldReader::ReadSection(const YamlNode& node, const std::string& path, Message* message) {
  if (node.kind == Kind::kAlias) return Add(node, path, "aliases (`*name`) are not supported; write the values out");
  if (node.kind != Kind::kMap) {
    return Add(node, path, StrCat("expected a section with `key: value` lines, got ", NodeText(node)));
  }
  if (!node.tag.empty()) Add(node, path, StrCat("tags (`", node.tag, "`) are not supported"));
  std::map<std::string, const YamlNode*> seen;
  for (const auto& [key, value] : node.entries) {
    if (!CheckKey(key, path)) continue;
    const std::string child = JoinKey(path, key.value);
    if (const auto [first, is_new] = seen.emplace(key.value, &key); !is_new) {
      Add(key, child, StrCat("given twice, first at ", Place(*first->second)));
      continue;
    }
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.value);
    if (field == nullptr) {
      Add(key, child, UnknownKeyMessage(message->GetDescriptor(), key.value));
      continue;
    }
    if (locations_ != nullptr) (*locations_)[child] = Place(IsSection(field) ? key : value);
    ReadField(value, child, field, message);
  }
}

void FieldReader::ReadField(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                            Message* message) {
  if (node.kind == Kind::kNull) return;
  if (field->is_map()) return ReadMap(node, path, field, message);
  if (IsList(field)) return ReadList(node, path, field, message);
  if (IsSection(field)) return ReadSection(node, path, message->GetReflection()->MutableMessage(message, field));
  ReadScalar(node, path, field, message);
}

void FieldReader::ReadMap(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                          Message* message) {
  if (node.kind == Kind::kAlias) return Add(node, path, "aliases (`*name`) are not supported; write the values out");
  if (node.kind != Kind::kMap) {
    return Add(node, path, StrCat("expected `key: value` pairs, got ", NodeText(node)));
  }
  std::map<std::string, const YamlNode*> seen;
  for (const auto& [key, value] : node.entries) {
    if (!CheckKey(key, path)) continue;
    const std::string child = JoinKey(path, key.value);
    if (const auto [first, is_new] = seen.emplace(key.value, &key); !is_new) {
      Add(key, child, StrCat("given twice, first at ", Place(*first->second)));
      continue;
    }
    if (locations_ != nullptr) (*locations_)[child] = Place(value);
    ReadMapEntry(value, child, field, key.value, message);
  }
}

// Replaces what is there.
void FieldReader::ReadList(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                           Message* message) {
  if (node.kind != Kind::kSequence) {
    return Add(node, path, StrCat("expected a list, such as [a, b], got ", NodeText(node)));
  }
  const Reflection* reflection = message->GetReflection();
  reflection->ClearField(message, field);
  for (const YamlNode& item : node.items) {
    if (CheckScalar(item, path, "text")) reflection->AddString(message, field, item.value);
  }
}

void FieldReader::ReadMapEntry(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                               const std::string& key, Message* message) {
  if (node.kind == Kind::kNull || !CheckScalar(node, path, "text")) return;
  const Reflection* reflection = message->GetReflection();
  Message* entry = nullptr;
  for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
    Message* candidate = reflection->MutableRepeatedMessage(message, field, i);
    if (candidate->GetReflection()->GetString(*candidate, candidate->GetDescriptor()->map_key()) == key) {
      entry = candidate;
    }
  }
  if (entry == nullptr) entry = reflection->AddMessage(message, field);
  entry->GetReflection()->SetString(entry, entry->GetDescriptor()->map_key(), key);
  entry->GetReflection()->SetString(entry, entry->GetDescriptor()->map_value(), node.value);
}

bool FieldReader::CheckScalar(const YamlNode& node, const std::string& path, std::string_view expected) {
  if (node.kind == Kind::kAlias) {
    Add(node, path, "aliases (`*name`) are not supported; write the value out");
    return false;
  }
  if (node.kind != Kind::kScalar) {
    Add(node, path, StrCat("expected ", expected, ", got ", NodeText(node)));
    return false;
  }
  if (!node.tag.empty()) {
    Add(node, path, StrCat("tags (`", node.tag, "`) are not supported"));
    return false;
  }
  return true;
}

void FieldReader::ReadScalar(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                             Message* message) {
  const Reflection* reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    if (CheckScalar(node, path, "text")) reflection->SetString(message, field, node.value);
    return;
  }
  const bool is_bool = field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
  const bool is_double = field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
  const std::string_view expected = is_bool ? "true or false" : is_double ? "a number" : "a whole number";
  if (!CheckScalar(node, path, expected)) return;
  if (node.quoted) {
    return Add(node, path, StrCat("expected ", expected, ", got the text ", NodeText(node), "; leave out the quotes"));
  }
  std::string problem;
  if (is_bool) {
    if (node.value != "true" && node.value != "false") {
      problem = "expected true or false";
    } else {
      reflection->SetBool(message, field, node.value == "true");
    }
  } else if (is_double) {
    double value = 0;
    problem = ParseDouble(node.value, &value);
    if (problem.empty()) reflection->SetDouble(message, field, value);
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    int32_t value = 0;
    problem = ParseInteger(node.value, &value);
    if (problem.empty()) reflection->SetInt32(message, field, value);
  } else {
    int64_t value = 0;
    problem = ParseInteger(node.value, &value);
    if (problem.empty()) reflection->SetInt64(message, field, value);
  }
  if (!problem.empty()) Add(node, path, StrCat(problem, ", got ", NodeText(node)));
}

}  // namespace slipway::engine::spec
