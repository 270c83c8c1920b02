// WriteHfConfig of hf_config.h, and what reading and writing share.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/hf_config_json.h"

namespace slipway::engine::arch {
namespace {

using Json = nlohmann::ordered_json;

constexpr Family kAllFamilies[] = {Family::kLlama, Family::kQwen2, Family::kQwen3, Family::kQwen3Moe};

void SetRope(Json& config, const ModelArch& arch) {
  Json scaling;  // null
  if (arch.rope_scaling.has_value()) {
    scaling = Json{{"factor", arch.rope_scaling->factor},
                   {"high_freq_factor", arch.rope_scaling->high_freq_factor},
                   {"low_freq_factor", arch.rope_scaling->low_freq_factor},
                   {"original_max_position_embeddings", arch.rope_scaling->original_max_position_embeddings},
                   {"rope_type", "llama3"}};
  }
  Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
  parameters["rope_theta"] = arch.rotary_base;
  SetKey(config, "rope_theta", arch.rotary_base);
  SetKey(config, "rope_scaling", std::move(scaling));
  SetKey(config, "rope_parameters", std::move(parameters));
}

void SetTokenIds(Json& config, const ModelArch& arch) {
  SetKeyUnless(config, "bos_token_id", arch.bos_token_id.has_value() ? Json(*arch.bos_token_id) : Json(), Json());
  Json eos;
  if (arch.eos_token_ids.size() == 1) {
    eos = arch.eos_token_ids.front();
    // A list of one stays a list.
    if (config.contains("eos_token_id") && config["eos_token_id"] == Json(arch.eos_token_ids)) return;
  } else if (!arch.eos_token_ids.empty()) {
    eos = arch.eos_token_ids;
  }
  SetKeyUnless(config, "eos_token_id", std::move(eos), Json());
}

}  // namespace

void SetKey(Json& object, const char* key, Json value) {
  const auto found = object.find(key);
  if (found != object.end() && nlohmann::json(*found) == nlohmann::json(value)) return;
  object[key] = std::move(value);
}

void SetKeyUnless(Json& object, const char* key, Json value, const Json& meaning_of_absence) {
  if (object.contains(key) || value != meaning_of_absence) SetKey(object, key, std::move(value));
}

absl::StatusOr<Json> ParseConfigObject(std::string_view text, std::string_view source) {
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const Json::parser_callback_t check_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  Json config;
  try {
    config = Json::parse(text.begin(), text.end(), check_depth);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(source), ": not valid JSON: ", error.what()));
  }
  if (too_deep) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(source), ": nested more than ", kMaxDepth, " deep"));
  }
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(source), ": must be a JSON object, not ", config.type_name()));
  }
  return config;
}

std::string HfClassName(Family family) {
  switch (family) {
    case Family::kLlama:
      return "LlamaForCausalLM";
    case Family::kQwen2:
      return "Qwen2ForCausalLM";
    case Family::kQwen3:
      return "Qwen3ForCausalLM";
    case Family::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
  }
  return "";
}

std::optional<Family> FamilyOfClass(std::string_view class_name) {
  for (Family family : kAllFamilies) {
    if (HfClassName(family) == class_name) return family;
  }
  return std::nullopt;
}

std::string SupportedClasses() {
  std::string names;
  for (Family family : kAllFamilies) absl::StrAppend(&names, names.empty() ? "" : ", ", HfClassName(family));
  return names;
}

std::string SupportedTypes() {
  std::string names;
  for (Family family : kAllFamilies) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(FamilyName(family)));
  }
  return names;
}

absl::StatusOr<std::string> WriteHfConfig(const ModelArch& arch, std::string_view original_text) {
  SLIPWAY_RETURN_IF_ERROR(FaultsToStatus(Validate(arch)));
  if (arch.moe.has_value()) SLIPWAY_RETURN_IF_ERROR(FaultsToStatus(HfFaults(*arch.moe)));
  Json config = Json::object();
  if (!original_text.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(config, ParseConfigObject(original_text, "the original config.json"));
  }
  SetKey(config, "architectures", Json::array({HfClassName(arch.family)}));
  SetKey(config, "model_type", std::string(FamilyName(arch.family)));
  SetKey(config, "vocab_size", arch.vocab_size);
  SetKey(config, "hidden_size", arch.hidden_size);
  SetKey(config, "intermediate_size", arch.ffn_hidden_size);
  SetKey(config, "num_hidden_layers", arch.num_layers);
  SetKey(config, "num_attention_heads", arch.num_attention_heads);
  SetKey(config, "num_key_value_heads", arch.num_query_groups);
  SetKey(config, "head_dim", arch.kv_channels);
  SetKey(config, "max_position_embeddings", arch.max_position_embeddings);
  if (arch.moe.has_value()) WriteHfMoe(*arch.moe, arch.num_layers, config);
  SetRope(config, arch);
  SetKey(config, "rms_norm_eps", arch.norm_epsilon);
  SetKeyUnless(config, "hidden_act", "silu", Json());
  SetKey(config, "tie_word_embeddings", !arch.untie_embeddings_and_output_weights);
  SetKey(config, "initializer_range", arch.init_method_std);
  SetKey(config, "attention_dropout", arch.attention_dropout);
  SetTokenIds(config, arch);
  const std::string dtype(DTypeName(arch.dtype));
  SetKey(config, "torch_dtype", dtype);
  SetKey(config, "dtype", dtype);
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace slipway::engine::arch
