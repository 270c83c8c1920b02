// The architecture that a spec's model section names. Thread-safe: pure functions, apart from reading the file.
#ifndef SLIPWAY_ENGINE_SPEC_ARCH_FROM_SPEC_H_
#define SLIPWAY_ENGINE_SPEC_ARCH_FROM_SPEC_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Of a resolved spec: reads <hf_path>/config.json, or takes the preset or the explicit fields. The dropout rates are
// the spec's in every case, and so are the settings of routing that it gives. Errors of config.json as
// arch::ReadHfConfig; InvalidArgument with all faults of explicit fields.
absl::StatusOr<arch::ModelArch> ArchFromSpec(const v1::TrainingSpec& resolved);

// Without files: nothing when the model comes from hf_path, or when its fields do not make an architecture. The result
// may still be invalid (arch::Validate).
std::optional<arch::ModelArch> ArchFromFields(const v1::ModelSpec& resolved_model);

// Puts what a spec says about the training of any model into its architecture: dropout, and how experts are used.
void ApplyTrainingSettings(const v1::ModelSpec& model, arch::ModelArch* arch);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_ARCH_FROM_SPEC_H_
