#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/json_text.h"
#include "engine/format/manifest.h"

namespace slipway::engine::format {
namespace {

using Json = nlohmann::json;

constexpr char kChecksumKey[] = "manifest_checksum";

std::string Compact(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json ShardToJson(const ManifestShard& shard) {
  return {{"file", shard.file},
          {"byte_offset", shard.byte_offset},
          {"start", shard.piece.box.start},
          {"extent", shard.piece.box.extent},
          {"range", {shard.piece.begin, shard.piece.end}}};
}

Json TensorToJson(const ManifestTensor& tensor) {
  Json json = {{"name", tensor.name},
               {"kind", StateKindName(tensor.kind)},
               {"dtype", DTypeName(tensor.dtype)},
               {"shape", tensor.shape}};
  if (!tensor.alias_of.empty()) {
    json["alias_of"] = tensor.alias_of;
    return json;
  }
  json["shards"] = Json::array();
  for (const ManifestShard& shard : tensor.shards) json["shards"].push_back(ShardToJson(shard));
  return json;
}

Json LineageToJson(const LineageEntry& entry) {
  Json json = {{"epoch", entry.epoch}};
  if (entry.forked_from.has_value()) {
    json["forked_from"] = {{"epoch", entry.forked_from->epoch}, {"step", entry.forked_from->step}};
  }
  return json;
}

absl::StatusOr<ManifestShard> ShardFromJson(const Json& json, const std::string& path) {
  JsonFields fields(json, path);
  ManifestShard shard;
  SLIPWAY_ASSIGN_OR_RETURN(shard.file, fields.String("file"));
  SLIPWAY_ASSIGN_OR_RETURN(shard.byte_offset, fields.Count("byte_offset"));
  SLIPWAY_ASSIGN_OR_RETURN(shard.piece.box.start, fields.Integers("start"));
  SLIPWAY_ASSIGN_OR_RETURN(shard.piece.box.extent, fields.Integers("extent"));
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<int64_t> range, fields.Integers("range"));
  if (range.size() != 2) return fields.Refuse("range", "must be [begin, end]");
  shard.piece.begin = range[0];
  shard.piece.end = range[1];
  SLIPWAY_RETURN_IF_ERROR(fields.CheckAllRead());
  return shard;
}

absl::StatusOr<ManifestTensor> TensorFromJson(const Json& json, const std::string& path) {
  JsonFields fields(json, path);
  ManifestTensor tensor;
  SLIPWAY_ASSIGN_OR_RETURN(tensor.name, fields.String("name"));
  SLIPWAY_ASSIGN_OR_RETURN(const std::string kind_name, fields.String("kind"));
  const std::optional<StateKind> kind = StateKindFromName(kind_name);
  if (!kind.has_value()) return fields.Refuse("kind", absl::StrCat("\"", kind_name, "\" is unknown"));
  tensor.kind = *kind;
  SLIPWAY_ASSIGN_OR_RETURN(const std::string dtype_name, fields.String("dtype"));
  const std::optional<DType> dtype = DTypeFromName(dtype_name);
  if (!dtype.has_value()) return fields.Refuse("dtype", absl::StrCat("\"", dtype_name, "\" is unknown"));
  tensor.dtype = *dtype;
  SLIPWAY_ASSIGN_OR_RETURN(tensor.shape, fields.Integers("shape"));
  if (fields.Has("alias_of")) {
    SLIPWAY_ASSIGN_OR_RETURN(tensor.alias_of, fields.String("alias_of"));
    if (tensor.alias_of.empty()) return fields.Refuse("alias_of", "is empty");
  } else {
    SLIPWAY_ASSIGN_OR_RETURN(const Json* shards, fields.List("shards"));
    for (size_t i = 0; i < shards->size(); ++i) {
      SLIPWAY_ASSIGN_OR_RETURN(ManifestShard shard,
                               ShardFromJson((*shards)[i], absl::StrCat(path, ".shards[", i, "]")));
      tensor.shards.push_back(std::move(shard));
    }
  }
  SLIPWAY_RETURN_IF_ERROR(fields.CheckAllRead());
  return tensor;
}

absl::StatusOr<LineageEntry> LineageFromJson(const Json& json, const std::string& path) {
  JsonFields fields(json, path);
  LineageEntry entry;
  SLIPWAY_ASSIGN_OR_RETURN(entry.epoch, fields.Count("epoch"));
  if (fields.Has("forked_from")) {
    SLIPWAY_ASSIGN_OR_RETURN(const Json* object, fields.Object("forked_from"));
    JsonFields fork(*object, path + ".forked_from");
    entry.forked_from.emplace();
    SLIPWAY_ASSIGN_OR_RETURN(entry.forked_from->epoch, fork.Count("epoch"));
    SLIPWAY_ASSIGN_OR_RETURN(entry.forked_from->step, fork.Count("step"));
    SLIPWAY_RETURN_IF_ERROR(fork.CheckAllRead());
  }
  SLIPWAY_RETURN_IF_ERROR(fields.CheckAllRead());
  return entry;
}

absl::Status FilesFromJson(const Json& json, const std::string& path, Manifest* manifest) {
  for (const auto& [name, value] : json.items()) {
    JsonFields fields(value, absl::StrCat(path, "[\"", name, "\"]"));
    ManifestFile& file = manifest->files[name];
    SLIPWAY_ASSIGN_OR_RETURN(file.size, fields.Count("size"));
    SLIPWAY_ASSIGN_OR_RETURN(file.checksum, fields.String("checksum"));
    SLIPWAY_RETURN_IF_ERROR(fields.CheckAllRead());
  }
  return absl::OkStatus();
}

absl::Status IntegersFromJson(const Json& json, const std::string& path, std::map<std::string, int64_t>* out) {
  JsonFields fields(json, path);
  for (const auto& [key, value] : json.items()) {
    SLIPWAY_ASSIGN_OR_RETURN((*out)[key], fields.Integer(key.c_str()));
  }
  return absl::OkStatus();
}

absl::Status CheckTextChecksum(const Json& json, const std::string& source) {
  Json body = json;
  const std::string stored = body[kChecksumKey].is_string() ? body[kChecksumKey].get<std::string>() : "";
  body.erase(kChecksumKey);
  const std::string actual = ChecksumOf(Compact(body));
  if (stored == actual) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(source, ": its checksum is ", actual, ", and it says \"", stored,
                                          "\"; the file is damaged or was edited"));
}

absl::Status ReadFields(const Json& json, const std::string& source, Manifest* manifest) {
  JsonFields fields(json, source);
  SLIPWAY_RETURN_IF_ERROR(fields.String(kChecksumKey).status());
  SLIPWAY_RETURN_IF_ERROR(fields.Integer("format_version").status());
  SLIPWAY_ASSIGN_OR_RETURN(manifest->job_id, fields.String("job_id"));
  SLIPWAY_ASSIGN_OR_RETURN(manifest->step, fields.Count("step"));
  SLIPWAY_ASSIGN_OR_RETURN(manifest->epoch, fields.Count("epoch"));
  SLIPWAY_ASSIGN_OR_RETURN(manifest->consumed_samples, fields.Count("consumed_samples"));
  SLIPWAY_ASSIGN_OR_RETURN(manifest->consumed_tokens, fields.Count("consumed_tokens"));
  SLIPWAY_ASSIGN_OR_RETURN(const Json* spec, fields.Object("resolved_spec"));
  manifest->resolved_spec = Compact(*spec);
  SLIPWAY_ASSIGN_OR_RETURN(const Json* mesh, fields.Object("mesh"));
  SLIPWAY_RETURN_IF_ERROR(IntegersFromJson(*mesh, source + ": mesh", &manifest->mesh));
  SLIPWAY_ASSIGN_OR_RETURN(const Json* counters, fields.Object("counters"));
  SLIPWAY_RETURN_IF_ERROR(IntegersFromJson(*counters, source + ": counters", &manifest->counters));
  SLIPWAY_ASSIGN_OR_RETURN(const Json* values, fields.Object("values"));
  for (const auto& [key, value] : values->items()) {
    if (!value.is_number()) return fields.Refuse("values", StrCat("must give a number for \"", key, "\""));
    manifest->values[key] = value.get<double>();
  }
  SLIPWAY_ASSIGN_OR_RETURN(const Json* lineage, fields.List("lineage"));
  for (size_t i = 0; i < lineage->size(); ++i) {
    SLIPWAY_ASSIGN_OR_RETURN(LineageEntry entry,
                             LineageFromJson((*lineage)[i], absl::StrCat(source, ": lineage[", i, "]")));
    manifest->lineage.push_back(entry);
  }
  SLIPWAY_ASSIGN_OR_RETURN(const Json* files, fields.Object("files"));
  SLIPWAY_RETURN_IF_ERROR(FilesFromJson(*files, source + ": files", manifest));
  SLIPWAY_ASSIGN_OR_RETURN(const Json* tensors, fields.List("tensors"));
  for (size_t i = 0; i < tensors->size(); ++i) {
    SLIPWAY_ASSIGN_OR_RETURN(ManifestTensor tensor,
                             TensorFromJson((*tensors)[i], absl::StrCat(source, ": tensors[", i, "]")));
    manifest->tensors.push_back(std::move(tensor));
  }
  return fields.CheckAllRead();
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"size", file.size}, {"checksum", file.checksum}};
  Json lineage = Json::array();
  for (const LineageEntry& entry : manifest.lineage) lineage.push_back(LineageToJson(entry));
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors) tensors.push_back(TensorToJson(tensor));
  Json spec = Json::parse(manifest.resolved_spec, nullptr, /*allow_exceptions=*/false);
  Json json = {{"format_version", kManifestFormatVersion},
               {"job_id", manifest.job_id},
               {"step", manifest.step},
               {"epoch", manifest.epoch},
               {"consumed_samples", manifest.consumed_samples},
               {"consumed_tokens", manifest.consumed_tokens},
               {"mesh", manifest.mesh},
               {"counters", manifest.counters},
               {"values", manifest.values},
               {"files", std::move(files)},
               {"lineage", std::move(lineage)},
               {"tensors", std::move(tensors)}};
  json["resolved_spec"] = spec.is_discarded() ? Json() : std::move(spec);
  json[kChecksumKey] = ChecksumOf(Compact(json));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Manifest> ManifestFromJson(std::string_view text, const std::string& source) {
  SLIPWAY_ASSIGN_OR_RETURN(const Json json, ParseJson(text, source));
  JsonFields fields(json, source);
  // The version first: another one may have other fields.
  SLIPWAY_ASSIGN_OR_RETURN(const int64_t version, fields.Integer("format_version"));
  if (version != kManifestFormatVersion) {
    return fields.Refuse("format_version",
                         absl::StrCat("is ", version, "; this program reads ", kManifestFormatVersion));
  }
  SLIPWAY_RETURN_IF_ERROR(CheckTextChecksum(json, source));
  Manifest manifest;
  SLIPWAY_RETURN_IF_ERROR(ReadFields(json, source, &manifest));
  if (absl::Status status = ValidateManifest(manifest); !status.ok()) return Annotate(status, source);
  return manifest;
}

}  // namespace slipway::engine::format
