#include "engine/spec/arch_from_spec.h"

#include "common/file_system.h"
#include "common/status_macros.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/presets.h"
#include "engine/spec/moe_fields.h"
#include "engine/spec/resolve.h"

namespace slipway::engine::spec {

void ApplyTrainingSettings(const v1::ModelSpec& model, arch::ModelArch* arch) {
  arch->attention_dropout = model.attention_dropout();
  arch->hidden_dropout = model.hidden_dropout();
  if (arch->moe.has_value()) ApplyRoutingSettings(model, &*arch->moe);
}

std::optional<arch::ModelArch> ArchFromFields(const v1::ModelSpec& model) {
  if (model.has_hf_path()) return std::nullopt;
  const std::optional<arch::Family> family = arch::FamilyFromName(model.architecture());
  if (!family) return std::nullopt;
  arch::ModelArch made;
  if (model.has_preset()) {  // what the spec has no field for, such as token ids
    const auto preset = arch::FindPreset(model.preset());
    if (!preset.ok()) return std::nullopt;
    made = *preset;
  }
  made.family = *family;
  made.num_layers = model.num_layers();
  made.hidden_size = model.hidden_size();
  made.num_attention_heads = model.num_attention_heads();
  made.num_query_groups = model.num_query_groups();
  made.kv_channels = model.kv_channels();
  made.ffn_hidden_size = model.ffn_hidden_size();
  made.vocab_size = model.vocab_size();
  made.max_position_embeddings = model.max_position_embeddings();
  made.rotary_base = model.rotary_base();
  made.norm_epsilon = model.norm_epsilon();
  made.add_qkv_bias = model.add_qkv_bias();
  made.qk_layernorm = model.qk_layernorm();
  made.untie_embeddings_and_output_weights = model.untie_embeddings_and_output_weights();
  made.init_method_std = model.init_method_std();
  made.moe.reset();
  if (*family == arch::Family::kQwen3Moe) made.moe = MoeFromFields(model);
  ApplyTrainingSettings(model, &made);
  made.rope_scaling.reset();
  if (model.has_rope_scaling()) {
    const v1::RopeScalingSpec& scaling = model.rope_scaling();
    made.rope_scaling = {.factor = scaling.factor(),
                         .low_freq_factor = scaling.low_freq_factor(),
                         .high_freq_factor = scaling.high_freq_factor(),
                         .original_max_position_embeddings = scaling.original_max_position_embeddings()};
  }
  return made;
}

absl::StatusOr<arch::ModelArch> ArchFromSpec(const v1::TrainingSpec& resolved) {
  const v1::ModelSpec& model = resolved.model();
  if (model.has_hf_path()) {
    SLIPWAY_ASSIGN_OR_RETURN(arch::ModelArch made, arch::ReadHfConfig(JoinPath(model.hf_path(), "config.json")));
    ApplyTrainingSettings(model, &made);
    return made;
  }
  if (model.has_preset()) {
    SLIPWAY_RETURN_IF_ERROR(arch::FindPreset(model.preset()).status());
  }
  const std::optional<arch::ModelArch> made = ArchFromFields(model);
  if (!made) {
    return absl::InvalidArgumentError(
        "model: give one of hf_path, preset, or explicit fields (architecture, num_layers, …)");
  }
  SLIPWAY_RETURN_IF_ERROR(FaultsToStatus(arch::Validate(*made)));
  return *made;
}

}  // namespace slipway::engine::spec
