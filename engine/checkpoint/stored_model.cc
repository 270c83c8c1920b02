#include "engine/checkpoint/stored_model.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/spec_reader.h"

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

absl::StatusOr<arch::ModelArch> ArchOf(const StoredModel& model) {
  if (model.config_json.empty()) return spec::ArchFromSpec(model.spec);
  SLIPWAY_ASSIGN_OR_RETURN(arch::ModelArch arch,
                           arch::ParseHfConfig(model.config_json, JoinPath(model.directory, kConfigFile)));
  spec::ApplyTrainingSettings(model.spec.model(), &arch);
  return arch;
}

}  // namespace

absl::StatusOr<StoredModel> OpenStoredModel(FileSystem& files, const std::string& directory) {
  StoredModel model;
  model.directory = directory;
  SLIPWAY_ASSIGN_OR_RETURN(model.manifest, format::ReadCheckpoint(files, directory));
  spec::ReadSpecResult read =
      spec::ReadSpec(model.manifest.resolved_spec, StrCat(JoinPath(directory, format::kManifestFile), " (spec)"));
  SLIPWAY_RETURN_IF_ERROR(spec::FaultsToStatus(read.faults, "the checkpoint's spec"));
  model.spec = std::move(read.spec);
  if (model.manifest.files.contains(kConfigFile)) {
    SLIPWAY_ASSIGN_OR_RETURN(model.config_json, files.ReadFile(JoinPath(directory, kConfigFile), kMaxConfigBytes));
  }
  SLIPWAY_ASSIGN_OR_RETURN(model.arch, ArchOf(model));
  return model;
}

absl::StatusOr<const format::ManifestTensor*> TensorOf(const format::Manifest& manifest, const std::string& directory,
                                                       const arch::ParamSpec& parameter, format::StateKind kind) {
  const std::string& name = parameter.tied_to.has_value() ? *parameter.tied_to : parameter.name;
  const format::ManifestTensor* tensor = manifest.Find(name, kind);
  if (tensor == nullptr && kind == format::StateKind::kWeight) {
    kind = format::StateKind::kMaster;
    tensor = manifest.Find(name, kind);
    if (tensor == nullptr) return absl::NotFoundError(StrCat(directory, ": the checkpoint has no weights of ", name));
  }
  if (tensor == nullptr) {
    return absl::NotFoundError(
        StrCat(directory, ": the checkpoint has no ", format::StateKindName(kind), " of ", name));
  }
  if (!tensor->alias_of.empty()) tensor = manifest.Find(tensor->alias_of, kind);
  if (tensor->shape == parameter.shape) return tensor;
  return absl::InvalidArgumentError(StrCat(directory, ": ", name, " has shape [", absl::StrJoin(tensor->shape, ", "),
                                           "], the model's configuration makes it [",
                                           absl::StrJoin(parameter.shape, ", "), "]"));
}

absl::StatusOr<const format::ManifestTensor*> WeightsOf(const StoredModel& model, const arch::ParamSpec& parameter) {
  return TensorOf(model.manifest, model.directory, parameter, format::StateKind::kWeight);
}

}  // namespace slipway::engine::checkpoint
