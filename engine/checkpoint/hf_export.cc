#include "engine/checkpoint/hf_export.h"

#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/model_files.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/checkpoint/weight_stream.h"
#include "engine/format/checkpoint_directory.h"

namespace slipway::engine::checkpoint {
namespace {

// What is to be written, worked out before anything is.
struct ExportPlan {
  std::vector<format::HfTensorSpec> tensors;
  std::map<std::string, const format::ManifestTensor*> stored;  // by name
  std::string config_json;
};

absl::Status CheckTarget(FileSystem& files, const ExportOptions& options) {
  const absl::StatusOr<FileInfo> info = files.Stat(options.out_dir);
  if (absl::IsNotFound(info.status())) return absl::OkStatus();
  SLIPWAY_RETURN_IF_ERROR(info.status());
  if (!info->is_directory)
    return absl::AlreadyExistsError(StrCat(options.out_dir, " is a file; name a directory to write"));
  if (options.replace) return absl::OkStatus();
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(options.out_dir));
  if (names.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      StrCat(options.out_dir, " is not empty (", names.front(), "); name a new or empty directory"));
}

// The types that the tensors have in the directory that the model came from; empty where there is none.
std::map<std::string, DType> TypesOfModel(FileSystem& files, const std::string& model_dir,
                                          std::vector<std::string>* notes) {
  std::map<std::string, DType> types;
  if (model_dir.empty()) return types;
  const absl::StatusOr<format::HfWeights> weights = format::HfWeights::Open(files, model_dir);
  if (!weights.ok()) {
    notes->push_back(StrCat("the types of the tensors follow config.json alone: ", ToStd(weights.status().message())));
    return types;
  }
  for (const format::HfTensor& tensor : weights->tensors()) types.emplace(tensor.stored.name, tensor.stored.dtype);
  return types;
}

absl::StatusOr<ExportPlan> MakePlan(FileSystem& files, const StoredModel& model, const ExportOptions& options,
                                    const std::string& model_dir, std::vector<std::string>* notes) {
  ExportPlan plan;
  arch::ModelArch arch = model.arch;
  std::map<std::string, DType> types;
  if (options.dtype.has_value()) {
    arch.dtype = *options.dtype;
  } else if (model.config_json.empty() && !model.spec.model().has_hf_path()) {
    arch.dtype = DType::kFloat32;
  } else {
    types = TypesOfModel(files, model_dir, notes);
  }
  for (const arch::ParamSpec& parameter : arch::BuildParamTable(arch)) {
    if (parameter.tied_to.has_value()) continue;
    SLIPWAY_ASSIGN_OR_RETURN(const format::ManifestTensor* stored, WeightsOf(model, parameter));
    const auto type = types.find(parameter.name);
    plan.tensors.push_back({.name = parameter.name,
                            .shape = parameter.shape,
                            .dtype = type == types.end() ? arch.dtype : type->second,
                            .source_dtype = stored->dtype});
    plan.stored.emplace(parameter.name, stored);
  }
  SLIPWAY_ASSIGN_OR_RETURN(plan.config_json, arch::WriteHfConfig(arch, model.config_json));
  return plan;
}

absl::Status WriteInto(FileSystem& files, const std::string& directory, const StoredModel& model,
                       const ExportPlan& plan, const ExportOptions& options, const std::string& model_dir,
                       ExportResult* result) {
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(directory));
  WeightStream stream(files, model.directory);
  const format::TensorSource source = [&](const format::HfTensorSpec& tensor, const format::AppendBytes& append) {
    return stream.Give(*plan.stored.at(tensor.name), append);
  };
  SLIPWAY_ASSIGN_OR_RETURN(result->weights, format::WriteHfWeights(files, directory, plan.tensors,
                                                                   {.max_file_bytes = options.max_file_bytes}, source));
  SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(JoinPath(directory, kConfigFile), plan.config_json));
  const v1::TokenizerSpec& tokenizer = model.spec.tokenizer();
  const bool other_source = !options.model_dir.empty();
  const ModelFileSources sources = {.model_dir = model_dir,
                                    .tokenizer_dir = other_source ? model_dir : tokenizer.path(),
                                    .chat_template_path = other_source ? "" : tokenizer.chat_template_path()};
  SLIPWAY_ASSIGN_OR_RETURN(result->copied, CopyModelFiles(files, sources, directory));
  return files.SyncDirectory(directory);
}

absl::Status PutInPlace(FileSystem& files, const std::string& written, const ExportOptions& options) {
  if (options.replace) SLIPWAY_RETURN_IF_ERROR(files.RemoveTree(options.out_dir));
  SLIPWAY_RETURN_IF_ERROR(files.Rename(written, options.out_dir));
  return files.SyncDirectory(DirName(options.out_dir));
}

}  // namespace

absl::StatusOr<ExportResult> ExportCheckpoint(FileSystem& files, const std::string& checkpoint_dir,
                                              const ExportOptions& given) {
  ExportOptions options = given;
  while (options.out_dir.size() > 1 && options.out_dir.back() == '/') options.out_dir.pop_back();
  if (options.out_dir.empty()) return absl::InvalidArgumentError("an export needs a directory to write");
  if (options.dtype.has_value() && !IsFloatingPoint(*options.dtype)) {
    return absl::InvalidArgumentError(
        StrCat("weights cannot be written as ", DTypeName(*options.dtype), "; expected float32, bfloat16 or float16"));
  }
  SLIPWAY_RETURN_IF_ERROR(CheckTarget(files, options));
  SLIPWAY_ASSIGN_OR_RETURN(const StoredModel model, OpenStoredModel(files, checkpoint_dir));
  if (options.verify_checksums) SLIPWAY_RETURN_IF_ERROR(format::VerifyChecksums(files, checkpoint_dir, model.manifest));
  const std::string model_dir = options.model_dir.empty() ? model.spec.model().hf_path() : options.model_dir;
  ExportResult result;
  SLIPWAY_ASSIGN_OR_RETURN(const ExportPlan plan, MakePlan(files, model, options, model_dir, &result.notes));

  const std::string partial =
      JoinPath(DirName(options.out_dir), StrCat(".", BaseName(options.out_dir), ".slipway-partial"));
  SLIPWAY_RETURN_IF_ERROR(files.RemoveTree(partial));  // of an export that was killed
  absl::Status status = WriteInto(files, partial, model, plan, options, model_dir, &result);
  if (status.ok()) status = PutInPlace(files, partial, options);
  if (!status.ok()) {
    files.RemoveTree(partial).IgnoreError();  // the write's error is the one to report
    return Annotate(status, StrCat("exporting ", checkpoint_dir, " to ", options.out_dir));
  }
  if (result.copied.empty()) result.notes.push_back("no tokenizer was found to go with the weights");
  return result;
}

absl::Status ExportLatest(FileSystem& files, const std::string& checkpoint_root, const std::string& job_id,
                          const std::vector<v1::LineageEntry>& lineage, const v1::TrainingSpec& spec,
                          const std::string& out_dir) {
  std::vector<std::string> notes;
  SLIPWAY_ASSIGN_OR_RETURN(const std::optional<ResumePoint> newest,
                           FindResumePoint(files, checkpoint_root, job_id, lineage, &notes));
  if (!newest.has_value())
    return absl::NotFoundError(StrCat(checkpoint_root, " has no checkpoint of this run to export"));
  ExportOptions options{.out_dir = out_dir, .replace = true};
  if (spec.checkpoint().has_export_dtype()) options.dtype = DTypeFromName(spec.checkpoint().export_dtype());
  SLIPWAY_ASSIGN_OR_RETURN(const ExportResult result, ExportCheckpoint(files, newest->path, options));
  for (const format::HfOverflow& overflow : result.weights.overflows) {
    spdlog::warn("export: {} elements of {} are too large for the type and became infinite", overflow.elements,
                 overflow.tensor);
  }
  for (const std::string& note : result.notes) spdlog::info("export: {}", note);
  spdlog::info("exported step {} to {} ({} bytes of weights)", newest->step, out_dir, result.weights.total_bytes);
  return absl::OkStatus();
}

}  // namespace slipway::engine::checkpoint
