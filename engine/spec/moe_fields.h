// The experts of a model in the spec's model section. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_MOE_FIELDS_H_
#define SLIPWAY_ENGINE_SPEC_MOE_FIELDS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/arch/moe_arch.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Fields of the model section (without "model.") that say how experts are trained, not what they are: they go with any
// model that has experts, wherever it comes from.
bool IsRoutingSetting(std::string_view field);

// The fields of a model with experts that are set, as "model.moe_router_topk", in the order of the proto.
std::vector<std::string> MoeFieldsOf(const v1::TrainingSpec& spec);

// Fills in what is unset, from a preset or with what a field's documentation says.
void FillMoeFromPreset(const arch::MoeArch& preset, v1::ModelSpec* model);
void FillExplicitMoe(v1::ModelSpec* model);

// What the fields make; may be invalid. A moe_layer_freq that cannot be read counts as 1 (Validate says so).
arch::MoeArch MoeFromFields(const v1::ModelSpec& model);

// Replaces the routing settings of an architecture by those that are set.
void ApplyRoutingSettings(const v1::ModelSpec& model, arch::MoeArch* moe);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_MOE_FIELDS_H_
