// What reading and writing config.json share. Internal to engine/arch. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_ARCH_HF_CONFIG_JSON_H_
#define SLIPWAY_ENGINE_ARCH_HF_CONFIG_JSON_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"

namespace slipway::engine::arch {

// Parses a JSON object, keeping the order of its keys. InvalidArgument with `source` and the place of a syntax error,
// when it is another kind of value, or nested more than 64 deep.
absl::StatusOr<nlohmann::ordered_json> ParseConfigObject(std::string_view text, std::string_view source);

// "LlamaForCausalLM", ...
std::string HfClassName(Family family);
std::optional<Family> FamilyOfClass(std::string_view class_name);
// "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM".
std::string SupportedClasses();

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_HF_CONFIG_JSON_H_
