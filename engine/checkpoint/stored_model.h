// The model that a checkpoint directory holds: what it is and where its weights lie, without reading them.
// Thread-safe: values and pure functions, apart from reading files.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_STORED_MODEL_H_
#define SLIPWAY_ENGINE_CHECKPOINT_STORED_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/param_spec.h"
#include "engine/format/manifest.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::checkpoint {

// The model's own config.json, kept beside the tensors where the model came from a Hugging Face directory.
inline constexpr char kConfigFile[] = "config.json";

struct StoredModel {
  std::string directory;
  format::Manifest manifest;
  v1::TrainingSpec spec;    // resolved, as the run had it
  std::string config_json;  // empty when the model came from a preset or from explicit fields
  arch::ModelArch arch;
};

// Reads and checks manifest, spec and config.json. Errors name the file.
absl::StatusOr<StoredModel> OpenStoredModel(FileSystem& files, const std::string& directory);

// The entry that holds the elements of one kind of a parameter's state, aliases and ties followed; for kWeight the
// stored weight, else the master that implies it. NotFound or InvalidArgument naming directory and parameter when it is
// missing or has another shape. The result lives as long as `manifest`.
absl::StatusOr<const format::ManifestTensor*> TensorOf(const format::Manifest& manifest, const std::string& directory,
                                                       const arch::ParamSpec& parameter, format::StateKind kind);
// Of a parameter's weights.
absl::StatusOr<const format::ManifestTensor*> WeightsOf(const StoredModel& model, const arch::ParamSpec& parameter);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_STORED_MODEL_H_
