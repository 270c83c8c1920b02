#include "engine/spec/explain.h"

#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_proto_source.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Comments of training_spec.proto by their place in the file: {4, message} or {4, message, 2, field}.
using Comments = std::map<std::vector<int>, std::string>;

Comments LoadComments() {
  google::protobuf::FileDescriptorSet set;
  const std::string_view bytes = TrainingSpecDescriptorSet();
  Comments comments;
  if (!set.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return comments;  // a test sees that it parses
  for (const auto& location : set.file(0).source_code_info().location()) {
    if (!location.has_leading_comments()) continue;
    std::vector<std::string> lines;
    for (const absl::string_view line : absl::StrSplit(absl::StripAsciiWhitespace(location.leading_comments()), '\n')) {
      lines.emplace_back(absl::StripAsciiWhitespace(line));
    }
    comments[{location.path().begin(), location.path().end()}] = absl::StrJoin(lines, " ");
  }
  return comments;
}

std::string CommentAt(const std::vector<int>& path) {
  static const Comments& comments = *new Comments(LoadComments());
  const auto found = comments.find(path);
  return found == comments.end() ? "" : found->second;
}

constexpr int kMessageTag = google::protobuf::FileDescriptorProto::kMessageTypeFieldNumber;
constexpr int kFieldTag = google::protobuf::DescriptorProto::kFieldFieldNumber;

std::string CommentOf(const Descriptor* section) { return CommentAt({kMessageTag, section->index()}); }

std::string CommentOf(const FieldDescriptor* field) {
  std::string comment = CommentAt({kMessageTag, field->containing_type()->index(), kFieldTag, field->index()});
  return comment.empty() && IsSection(field) ? CommentOf(field->message_type()) : comment;
}

std::string TypeText(const FieldDescriptor* field) {
  if (field->is_map()) return "map of text";
  if (IsList(field)) return "list of text";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return "whole number";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "number";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "section";
    default:
      return MetaOf(field).path_kind().empty() ? "text" : "path";
  }
}

std::string DefaultText(const FieldDescriptor* field) {
  const v1::FieldMeta& meta = MetaOf(field);
  return meta.required() ? "required" : meta.default_value().empty() ? "unset" : meta.default_value();
}

std::string AllowedText(const FieldDescriptor* field) {
  const v1::FieldMeta& meta = MetaOf(field);
  if (!meta.choices().empty()) return absl::StrJoin(meta.choices(), ", ");
  std::vector<std::string> parts;
  if (meta.has_min()) parts.push_back(StrCat(meta.exclusive_min() ? "above " : "at least ", DoubleText(meta.min())));
  if (meta.has_max()) parts.push_back(StrCat("at most ", DoubleText(meta.max())));
  return absl::StrJoin(parts, ", ");
}

std::string ResumeText(const FieldDescriptor* field) {
  switch (MetaOf(field).resume()) {
    case v1::RESUME_RULE_MUTABLE:
      return "may change";
    case v1::RESUME_RULE_LAYOUT:
      return "may change (layout)";
    default:
      return "fixed";
  }
}

std::string ResumeSentence(const FieldDescriptor* field) {
  switch (MetaOf(field).resume()) {
    case v1::RESUME_RULE_MUTABLE:
      return "may change; the new value holds from the resumed step on";
    case v1::RESUME_RULE_LAYOUT:
      return "may change; the checkpoint is laid out anew";
    default:
      return "fixed: a change is refused";
  }
}

// Breaks at spaces, with a margin.
std::string Wrapped(std::string_view text, size_t margin) {
  constexpr size_t kWidth = 100;
  std::string out;
  std::string line(margin, ' ');
  for (const absl::string_view word : absl::StrSplit(ToAbsl(text), ' ')) {
    if (line.size() > margin && line.size() + 1 + word.size() > kWidth) {
      absl::StrAppend(&out, line, "\n");
      line.assign(margin, ' ');
    }
    absl::StrAppend(&line, line.size() > margin ? " " : "", word);
  }
  return StrCat(out, line, "\n");
}

std::string ExplainField(const FieldPath& path) {
  const FieldDescriptor* field = path.field();
  const v1::FieldMeta& meta = MetaOf(field);
  std::string text = StrCat(path.path, " (", TypeText(field), meta.unit().empty() ? "" : ", in ", meta.unit(), ")\n");
  absl::StrAppend(&text, Wrapped(CommentOf(field), 2));
  absl::StrAppend(&text, "  default:   ", DefaultText(field), "\n");
  if (const std::string allowed = AllowedText(field); !allowed.empty())
    absl::StrAppend(&text, "  allowed:   ", allowed, "\n");
  absl::StrAppend(&text, "  on resume: ", ResumeSentence(field), "\n");
  return text;
}

std::string ExplainSection(const Descriptor* section, const std::string& path) {
  std::string text = path.empty() ? "A job's configuration\n" : StrCat(path, " (section)\n");
  if (const std::string comment = CommentOf(section); !comment.empty()) absl::StrAppend(&text, Wrapped(comment, 2));
  size_t width = 0;
  for (int i = 0; i < section->field_count(); ++i) width = std::max(width, section->field(i)->name().size());
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    const std::string& name = field->name();
    absl::StrAppend(&text, "\n  ", name, std::string(width - name.size() + 2, ' '));
    const v1::FieldMeta& meta = MetaOf(field);
    absl::StrAppend(&text, TypeText(field));
    if (!meta.unit().empty()) absl::StrAppend(&text, " in ", meta.unit());
    if (!IsSection(field) && !field->is_map()) {
      absl::StrAppend(&text, meta.required() ? ", required" : StrCat(", default ", DefaultText(field)));
    }
    absl::StrAppend(&text, "\n");
    if (const std::string comment = CommentOf(field); !comment.empty()) absl::StrAppend(&text, Wrapped(comment, 4));
  }
  return text;
}

// Keys that do not apply to the field are left out.
nlohmann::ordered_json FieldJson(const FieldDescriptor* field, const std::string& path) {
  const v1::FieldMeta& meta = MetaOf(field);
  nlohmann::ordered_json json = {{"path", path}, {"type", TypeText(field)}};
  if (!meta.unit().empty()) json["unit"] = meta.unit();
  json["description"] = CommentOf(field);
  if (IsSection(field)) return json;
  json["required"] = meta.required();
  if (!meta.default_value().empty()) json["default"] = meta.default_value();
  for (const std::string& choice : meta.choices()) json["choices"].push_back(choice);
  if (meta.has_min()) json[meta.exclusive_min() ? "above" : "min"] = meta.min();
  if (meta.has_max()) json["max"] = meta.max();
  json["on_resume"] = ResumeText(field);
  return json;
}

nlohmann::ordered_json SectionJson(const Descriptor* section, const std::string& path) {
  nlohmann::ordered_json json = {{"path", path}, {"type", "section"}, {"description", CommentOf(section)}};
  json["fields"] = nlohmann::ordered_json::array();
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    json["fields"].push_back(FieldJson(field, path.empty() ? field->name() : StrCat(path, ".", field->name())));
  }
  return json;
}

// NotFound names the path.
absl::StatusOr<FieldPath> Found(std::string_view path) {
  absl::StatusOr<FieldPath> field = FindField(path);
  if (!field.ok()) return absl::NotFoundError(StrCat(path, ": ", field.status().message()));
  return field;
}

std::string Cell(std::string_view text) { return absl::StrReplaceAll(ToAbsl(text), {{"|", "\\|"}, {"<", "&lt;"}}); }

void MarkdownSection(const Descriptor* section, const std::string& path, std::string* out) {
  absl::StrAppend(out, "\n## ", path.empty() ? "Top level" : StrCat("`", path, "`"), "\n\n");
  if (const std::string comment = CommentOf(section); !comment.empty() && !path.empty())
    absl::StrAppend(out, Cell(comment), "\n\n");
  absl::StrAppend(out,
                  "| key | type | default | allowed | on resume | meaning |\n| --- | --- | --- | --- | --- | --- |\n");
  std::vector<const FieldDescriptor*> sections;
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    if (IsSection(field)) {
      sections.push_back(field);
      if (!path.empty()) {
        absl::StrAppend(out, "| `", field->name(), "` | section | unset | | | ", Cell(CommentOf(field)), " |\n");
      }
      continue;
    }
    const v1::FieldMeta& meta = MetaOf(field);
    const std::string type = StrCat(TypeText(field), meta.unit().empty() ? "" : ", ", meta.unit());
    const std::string allowed = AllowedText(field);
    absl::StrAppend(out, "| `", field->name(), "` | ", type, " | ", Cell(DefaultText(field)), " | ",
                    allowed.empty() ? "" : StrCat(allowed, " "));
    absl::StrAppend(out, "| ", ResumeText(field), " | ", Cell(CommentOf(field)), " |\n");
  }
  for (const FieldDescriptor* field : sections) {
    MarkdownSection(field->message_type(), path.empty() ? field->name() : StrCat(path, ".", field->name()), out);
  }
}

}  // namespace

absl::StatusOr<std::string> Explain(std::string_view path) {
  if (path.empty()) return ExplainSection(v1::TrainingSpec::descriptor(), "");
  SLIPWAY_ASSIGN_OR_RETURN(const FieldPath field, Found(path));
  if (IsSection(field.field())) return ExplainSection(field.field()->message_type(), field.path);
  return ExplainField(field);
}

absl::StatusOr<nlohmann::ordered_json> ExplainJson(std::string_view path) {
  if (path.empty()) return SectionJson(v1::TrainingSpec::descriptor(), "");
  SLIPWAY_ASSIGN_OR_RETURN(const FieldPath field, Found(path));
  if (IsSection(field.field())) return SectionJson(field.field()->message_type(), field.path);
  return FieldJson(field.field(), field.path);
}

std::string ConfigurationMarkdown() {
  std::string text =
      "# Configuration of a job\n\n"
      "<!-- Made from proto/slipway/v1/training_spec.proto by `slipway spec explain --markdown`; do not edit. -->\n\n"
      "A job is a YAML (or JSON) file with these sections; `slipway spec explain SECTION.KEY` says the same. `--set "
      "SECTION.KEY=VALUE`\n"
      "changes a value and `--set SECTION.KEY=null` resets it. An unknown key, a value of the wrong type and a value "
      "out of range are\n"
      "refused, all at once. *On resume* says what `slipway jobs resume --set` may change: *fixed* nothing, *may "
      "change* the value\n"
      "from the resumed step on, *may change (layout)* also how the checkpoint is cut over ranks.\n";
  MarkdownSection(v1::TrainingSpec::descriptor(), "", &text);
  return text;
}

}  // namespace slipway::engine::spec
