// Hugging Face's config.json, both ways, for LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and
// Qwen3MoeForCausalLM.
//
// Reading is strict: what changes the model's output must be in the file or is refused, never assumed. Defaults stand
// in only where every version of transformers agrees on them: head_dim = hidden_size / num_attention_heads,
// tie_word_embeddings = false, hidden_act = silu, initializer_range = 0.02, attention_dropout = 0, dtype = float32, and
// for Llama num_key_value_heads = num_attention_heads. The rotary base is read from `rope_theta` with `rope_scaling`
// (transformers 4) or from `rope_parameters` (5); where a file has both they must agree.
// Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_ARCH_HF_CONFIG_H_
#define SLIPWAY_ENGINE_ARCH_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"

namespace slipway::engine::arch {

// `source` names the file in messages. InvalidArgument with one line a fault ("<source>: rope_theta: ...").
absl::StatusOr<ModelArch> ParseHfConfig(std::string_view json_text, std::string_view source);

// Reads <path>, which must be a regular file of at most 16 MiB. NotFound when it is not there.
absl::StatusOr<ModelArch> ReadHfConfig(const std::string& path);

// config.json for an export. Keys of `original_text` (the config that the model came with; empty when there was none)
// that we do not interpret are kept with their order and spelling; what we know is brought up to date. The rotary base
// is written in both spellings (`rope_theta` with `rope_scaling`, and `rope_parameters`), the dtype as `torch_dtype`
// and `dtype`, because each is ignored silently by some version of transformers. Ends with a newline. InvalidArgument
// when `arch` is invalid, has experts that the class does not compute (HfFaults), or `original_text` is not a JSON
// object.
absl::StatusOr<std::string> WriteHfConfig(const ModelArch& arch, std::string_view original_text = "");

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_HF_CONFIG_H_
