#include "engine/spec/spec_fields.h"

#include <charconv>
#include <cmath>
#include <map>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/spec/spec_writer.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::vector<std::string> KeysOf(const Descriptor* section) {
  std::vector<std::string> keys;
  for (int i = 0; i < section->field_count(); ++i) keys.push_back(section->field(i)->name());
  return keys;
}

void CollectFields(const Descriptor* section, const FieldPath& parent, std::vector<FieldPath>* out) {
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    FieldPath child = parent;
    child.path = parent.path.empty() ? field->name() : StrCat(parent.path, ".", field->name());
    child.fields.push_back(field);
    if (IsSection(field)) {
      CollectFields(field->message_type(), child, out);
    } else {
      out->push_back(std::move(child));
    }
  }
}

// The message that holds the field, or null where a section on the way is not set.
const Message* HolderOf(const Message& spec, const FieldPath& field) {
  const Message* holder = &spec;
  for (size_t i = 0; i + 1 < field.fields.size(); ++i) {
    const Reflection* reflection = holder->GetReflection();
    if (!reflection->HasField(*holder, field.fields[i])) return nullptr;
    holder = &reflection->GetMessage(*holder, field.fields[i]);
  }
  return holder;
}

Message* MutableHolderOf(Message* spec, const FieldPath& field) {
  for (size_t i = 0; i + 1 < field.fields.size(); ++i) {
    spec = spec->GetReflection()->MutableMessage(spec, field.fields[i]);
  }
  return spec;
}

std::map<std::string, std::string> MapOf(const Message& holder, const FieldDescriptor* field) {
  std::map<std::string, std::string> entries;
  const Reflection* reflection = holder.GetReflection();
  for (int i = 0; i < reflection->FieldSize(holder, field); ++i) {
    const Message& entry = reflection->GetRepeatedMessage(holder, field, i);
    const Reflection* of_entry = entry.GetReflection();
    entries[of_entry->GetString(entry, entry.GetDescriptor()->map_key())] =
        of_entry->GetString(entry, entry.GetDescriptor()->map_value());
  }
  return entries;
}

void SetMap(Message* holder, const FieldDescriptor* field, const std::map<std::string, std::string>& entries) {
  const Reflection* reflection = holder->GetReflection();
  reflection->ClearField(holder, field);
  for (const auto& [key, value] : entries) {
    Message* entry = reflection->AddMessage(holder, field);
    entry->GetReflection()->SetString(entry, entry->GetDescriptor()->map_key(), key);
    entry->GetReflection()->SetString(entry, entry->GetDescriptor()->map_value(), value);
  }
}

void SetList(Message* holder, const FieldDescriptor* field, const std::vector<std::string>& items) {
  const Reflection* reflection = holder->GetReflection();
  reflection->ClearField(holder, field);
  for (const std::string& item : items) reflection->AddString(holder, field, item);
}

std::string ScalarText(const Message& holder, const FieldDescriptor* field) {
  const Reflection* reflection = holder.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(holder, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return StrCat(reflection->GetInt32(holder, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return StrCat(reflection->GetInt64(holder, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DoubleText(reflection->GetDouble(holder, field));
    default:
      return reflection->GetString(holder, field);
  }
}

}  // namespace

const v1::FieldMeta& MetaOf(const FieldDescriptor* field) { return field->options().GetExtension(v1::meta); }

bool IsSection(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map();
}

bool IsList(const FieldDescriptor* field) { return field->is_repeated() && !field->is_map(); }

std::vector<std::string> ListOf(const Message& holder, const FieldDescriptor* field) {
  std::vector<std::string> items;
  const Reflection* reflection = holder.GetReflection();
  for (int i = 0; i < reflection->FieldSize(holder, field); ++i) {
    items.push_back(reflection->GetRepeatedString(holder, field, i));
  }
  return items;
}

std::string UnknownKeyMessage(const Descriptor* section, std::string_view key) {
  const std::vector<std::string> keys = KeysOf(section);
  if (const auto nearest = NearestKey(key, keys)) return StrCat("unknown key; did you mean `", *nearest, "`?");
  // Often a key of another section, written at the wrong level.
  for (const FieldPath& field : AllFields()) {
    if (field.field()->name() == key) return StrCat("unknown key here; it belongs to `", field.path, "`");
  }
  return StrCat("unknown key; known here: ", absl::StrJoin(keys, ", "));
}

absl::StatusOr<FieldPath> FindField(std::string_view path) {
  FieldPath found;
  found.path = std::string(path);
  const Descriptor* section = v1::TrainingSpec::descriptor();
  std::string_view rest = path;
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view key = rest.substr(0, dot);
    const FieldDescriptor* field = section->FindFieldByName(std::string(key));
    if (field == nullptr) return absl::NotFoundError(UnknownKeyMessage(section, key));
    found.fields.push_back(field);
    if (dot == std::string_view::npos) return found;
    rest = rest.substr(dot + 1);
    if (field->is_map()) {
      if (rest.empty()) return absl::NotFoundError("a key is missing after the dot");
      found.map_key = std::string(rest);
      return found;
    }
    if (!IsSection(field)) {
      return absl::NotFoundError(StrCat("`", field->name(), "` is a value and has no key `", rest, "`"));
    }
    section = field->message_type();
  }
}

std::vector<FieldPath> AllFields() {
  std::vector<FieldPath> fields;
  CollectFields(v1::TrainingSpec::descriptor(), {}, &fields);
  return fields;
}

std::string ValueText(const Message& spec, const FieldPath& field) {
  if (!HasValue(spec, field)) return "unset";
  const Message& holder = *HolderOf(spec, field);
  if (IsList(field.field())) {
    return StrCat("[", absl::StrJoin(ListOf(holder, field.field()), ", "), "]");
  }
  if (!field.field()->is_map()) {
    return IsSection(field.field()) ? "a section" : ScalarText(holder, field.field());
  }
  const std::map<std::string, std::string> entries = MapOf(holder, field.field());
  if (field.map_key) return entries.at(*field.map_key);
  return StrCat("{",
                absl::StrJoin(entries, ", ",
                              [](std::string* out, const auto& entry) {
                                absl::StrAppend(out, YamlString(entry.first), ": ", YamlString(entry.second));
                              }),
                "}");
}

bool HasValue(const Message& spec, const FieldPath& field) {
  const Message* holder = HolderOf(spec, field);
  if (holder == nullptr) return false;
  const Reflection* reflection = holder->GetReflection();
  if (!field.field()->is_repeated()) return reflection->HasField(*holder, field.field());
  if (!field.map_key) return reflection->FieldSize(*holder, field.field()) > 0;
  return MapOf(*holder, field.field()).contains(*field.map_key);
}

std::vector<std::string> ItemsOf(const Message& spec, const FieldPath& field) {
  const Message* holder = HolderOf(spec, field);
  return holder == nullptr ? std::vector<std::string>() : ListOf(*holder, field.field());
}

void ClearField(Message* spec, const FieldPath& field) {
  if (HolderOf(*spec, field) == nullptr) return;
  Message* holder = MutableHolderOf(spec, field);
  if (!field.map_key) {
    holder->GetReflection()->ClearField(holder, field.field());
    return;
  }
  std::map<std::string, std::string> entries = MapOf(*holder, field.field());
  entries.erase(*field.map_key);
  SetMap(holder, field.field(), entries);
}

void CopyField(const Message& from, const FieldPath& field, Message* to) {
  if (!HasValue(from, field)) return ClearField(to, field);
  const Message& source = *HolderOf(from, field);
  Message* target = MutableHolderOf(to, field);
  const FieldDescriptor* descriptor = field.field();
  const Reflection* reflection = target->GetReflection();
  if (descriptor->is_map()) return SetMap(target, descriptor, MapOf(source, descriptor));
  if (IsList(descriptor)) return SetList(target, descriptor, ListOf(source, descriptor));
  switch (descriptor->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(target, descriptor, source.GetReflection()->GetBool(source, descriptor));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(target, descriptor, source.GetReflection()->GetInt32(source, descriptor));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(target, descriptor, source.GetReflection()->GetInt64(source, descriptor));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(target, descriptor, source.GetReflection()->GetDouble(source, descriptor));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return reflection->MutableMessage(target, descriptor)
          ->CopyFrom(source.GetReflection()->GetMessage(source, descriptor));
    default:
      return reflection->SetString(target, descriptor, source.GetReflection()->GetString(source, descriptor));
  }
}

std::string DoubleText(double value) {
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::trunc(value) == value && std::abs(value) < kExactIntegers) return StrCat(static_cast<int64_t>(value));
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  // to_chars writes 1e-08; people write 1e-8.
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  return text;
}

}  // namespace slipway::engine::spec
