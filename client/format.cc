#include "client/format.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/yaml_tree.h"
#include "engine/spec/yaml_writer.h"
#include "slipway/v1/job.pb.h"

namespace slipway::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string CompactJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  // Fails only for a message with an Any of an unknown type, and there is none in the API.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

// Puts the spec of every job into `json` as a job file has it: with numbers as numbers.
void WriteSpecsPlainly(const Message& message, Json* json) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map() || !json->contains(field->name()))
      continue;
    Json& child = (*json)[field->name()];
    if (field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        WriteSpecsPlainly(reflection->GetRepeatedMessage(message, field, i), &child[static_cast<size_t>(i)]);
      }
    } else if (field->message_type() == v1::TrainingSpec::descriptor()) {
      v1::TrainingSpec spec;
      spec.CopyFrom(reflection->GetMessage(message, field));
      child = Json::parse(engine::spec::SpecToJson(spec));
    } else if (child.is_object()) {
      WriteSpecsPlainly(reflection->GetMessage(message, field), &child);
    }
  }
}

}  // namespace

Json ToJson(const Message& message) { return Json::parse(CompactJson(message)); }

Json ToJsonWithPlainSpecs(const Message& message) {
  Json json = ToJson(message);
  WriteSpecsPlainly(message, &json);
  return json;
}

std::string ToYaml(const Message& message) { return engine::spec::JsonToYaml(ToJsonWithPlainSpecs(message)); }

std::string JsonText(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

std::string JsonLine(const Json& json) {
  return absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

std::string Table::Text() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] - DisplayWidth(row[i]) + 2, ' ');
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string OneLine(const std::string& text) {
  const bool is_utf8 = engine::spec::IsValidUtf8(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !is_utf8)) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", ToTime(time), absl::LocalTimeZone());
}

std::string AgeText(const google::protobuf::Timestamp& time, absl::Time now) {
  if (time.seconds() == 0) return "-";
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(now - ToTime(time)));
  if (seconds < 120) return absl::StrCat(seconds, "s");
  if (seconds < 120 * 60) return absl::StrCat(seconds / 60, "m");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, "h");
  return absl::StrCat(seconds / 86400, "d");
}

std::string Grouped(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (auto at = static_cast<int>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string Number(double value, int digits) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return absl::StrFormat("%.*g", digits, value);
}

}  // namespace slipway::client
