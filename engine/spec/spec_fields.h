// The fields of TrainingSpec seen through protobuf's descriptors: the one way in which reader, overrides, defaults,
// validation, explanations and completion find a field by its dotted path and read its (meta) option.
// Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_FIELDS_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_FIELDS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "slipway/v1/field_meta.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// A field by its path from the top: {"training.seq_length", …}. `map_key` is set for an entry of a map: "env.FOO".
struct FieldPath {
  std::string path;
  std::vector<const google::protobuf::FieldDescriptor*> fields;  // from the top, the field itself last
  std::optional<std::string> map_key;

  const google::protobuf::FieldDescriptor* field() const { return fields.back(); }
};

const v1::FieldMeta& MetaOf(const google::protobuf::FieldDescriptor* field);

// True for a nested message that is written as a section (not for a map).
bool IsSection(const google::protobuf::FieldDescriptor* field);

// True for a list of texts.
bool IsList(const google::protobuf::FieldDescriptor* field);
std::vector<std::string> ListOf(const google::protobuf::Message& holder,
                                const google::protobuf::FieldDescriptor* field);

// Finds "section.field", "section" or "map.key". NotFound naming the part that is unknown, with the nearest key.
absl::StatusOr<FieldPath> FindField(std::string_view path);

// "unknown key; did you mean `seed`?", or with the list of keys where none is near.
std::string UnknownKeyMessage(const google::protobuf::Descriptor* section, std::string_view key);

// Every field that is not a section, in the order of the proto: {"spec_version", "name", …, "model.hf_path", …}.
std::vector<FieldPath> AllFields();

// What the field holds, as text for people: "0.95", "true", "cosine", "{team: a}"; "unset" where there is nothing.
std::string ValueText(const google::protobuf::Message& spec, const FieldPath& field);

bool HasValue(const google::protobuf::Message& spec, const FieldPath& field);
// The items of a list; none where it is not set.
std::vector<std::string> ItemsOf(const google::protobuf::Message& spec, const FieldPath& field);
// Clears it; a section that was only made on the way is not left behind. A section's path clears the section.
void ClearField(google::protobuf::Message* spec, const FieldPath& field);
// Copies the value (or the absence) of the field from one spec to another.
void CopyField(const google::protobuf::Message& from, const FieldPath& field, google::protobuf::Message* to);

// Shortest text that reads back as the same double; whole numbers below 2^53 without an exponent.
std::string DoubleText(double value);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_FIELDS_H_
