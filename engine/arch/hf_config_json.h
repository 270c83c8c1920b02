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
// "LlamaForCausalLM, Qwen2ForCausalLM, ..." and "llama, qwen2, ...".
std::string SupportedClasses();
std::string SupportedTypes();

// A value that is already there and equal (also 1000000 and 1000000.0, or keys in another order) keeps its spelling.
void SetKey(nlohmann::ordered_json& object, const char* key, nlohmann::ordered_json value);
// As SetKey, but only where the key stands or the value differs from what its absence means.
void SetKeyUnless(nlohmann::ordered_json& object, const char* key, nlohmann::ordered_json value,
                  const nlohmann::ordered_json& meaning_of_absence);

// The experts of a Qwen3MoeForCausalLM (hf_moe_config.cc). transformers 4 calls their number num_experts, 5 writes
// num_local_experts; both are read and written.
class Fields;
MoeArch ReadHfMoe(Fields& fields, int64_t num_layers);
// REQUIRES: HfFaults(moe) is empty.
void WriteHfMoe(const MoeArch& moe, int64_t num_layers, nlohmann::ordered_json& config);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_HF_CONFIG_JSON_H_
