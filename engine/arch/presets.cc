#include "engine/arch/presets.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text.h"

namespace slipway::engine::arch {
namespace {

constexpr double kNoScaling = 0;

// Llama 3.x: 128256 tokens, base 500000; `factor` is that of the rope scaling.
ModelArch Llama(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim, int64_t ffn, double factor,
                bool untied) {
  ModelArch arch{.family = Family::kLlama,
                 .num_layers = layers,
                 .hidden_size = hidden,
                 .num_attention_heads = heads,
                 .num_query_groups = 8,
                 .kv_channels = head_dim,
                 .ffn_hidden_size = ffn,
                 .vocab_size = 128256,
                 .max_position_embeddings = factor == kNoScaling ? 8192 : 131072,
                 .rotary_base = 500000,
                 .norm_epsilon = 1e-5,
                 .untie_embeddings_and_output_weights = untied,
                 .bos_token_id = 128000,
                 .eos_token_ids = {128001},
                 .dtype = DType::kBFloat16};
  if (factor != kNoScaling) arch.rope_scaling = RopeScaling{.factor = factor};
  return arch;
}

struct QwenSize {
  int64_t layers;
  int64_t hidden;
  int64_t heads;
  int64_t groups;
  int64_t head_dim;
  int64_t ffn;
  int64_t vocab;
  int64_t max_positions;
  bool untied;
  double epsilon = 1e-6;
};

ModelArch Qwen(Family family, const QwenSize& size) {
  return {.family = family,
          .num_layers = size.layers,
          .hidden_size = size.hidden,
          .num_attention_heads = size.heads,
          .num_query_groups = size.groups,
          .kv_channels = size.head_dim,
          .ffn_hidden_size = size.ffn,
          .vocab_size = size.vocab,
          .max_position_embeddings = size.max_positions,
          .rotary_base = 1e6,
          .norm_epsilon = size.epsilon,
          .add_qkv_bias = family == Family::kQwen2,
          .qk_layernorm = family != Family::kQwen2,
          .untie_embeddings_and_output_weights = size.untied,
          .bos_token_id = 151643,
          .eos_token_ids = {family == Family::kQwen2 ? 151643 : 151645},
          .dtype = DType::kBFloat16};
}

// Qwen3's mixtures of experts: 128, of which a token uses 8.
ModelArch QwenMoe(const QwenSize& size, int64_t moe_ffn) {
  ModelArch arch = Qwen(Family::kQwen3Moe, size);
  arch.moe = MoeArch{.num_experts = 128, .topk = 8, .ffn_hidden_size = moe_ffn, .aux_loss_coeff = 0.001};
  return arch;
}

ModelArch SmolLm2() {
  return {.family = Family::kLlama,
          .num_layers = 30,
          .hidden_size = 576,
          .num_attention_heads = 9,
          .num_query_groups = 3,
          .kv_channels = 64,
          .ffn_hidden_size = 1536,
          .vocab_size = 49152,
          .max_position_embeddings = 8192,
          .rotary_base = 100000,
          .norm_epsilon = 1e-5,
          .init_method_std = 0.041666666666666664,
          .bos_token_id = 1,
          .eos_token_ids = {2},
          .dtype = DType::kBFloat16};
}

// Small enough for a unit test, with every dimension different so that a transposed one shows.
ModelArch Tiny(Family family, bool untied) {
  const bool has_head_norms = family == Family::kQwen3 || family == Family::kQwen3Moe;
  ModelArch arch{.family = family,
                 .num_layers = 2,
                 .hidden_size = 64,
                 .num_attention_heads = 4,
                 .num_query_groups = 2,
                 .kv_channels = has_head_norms ? 32 : 16,
                 .ffn_hidden_size = 160,
                 .vocab_size = 260,
                 .max_position_embeddings = 512,
                 .rotary_base = 10000,
                 .norm_epsilon = 1e-5,
                 .add_qkv_bias = family == Family::kQwen2,
                 .qk_layernorm = has_head_norms,
                 .untie_embeddings_and_output_weights = untied,
                 .bos_token_id = 256,
                 .eos_token_ids = {257},
                 .dtype = DType::kFloat32};
  if (family == Family::kLlama) {
    arch.rope_scaling =
        RopeScaling{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 64};
  }
  if (family == Family::kQwen3Moe) {
    arch.moe = MoeArch{.num_experts = 8, .topk = 2, .ffn_hidden_size = 48, .aux_loss_coeff = 0.001};
  }
  return arch;
}

const std::vector<std::pair<std::string_view, ModelArch>>& Presets() {
  constexpr bool kTied = false;
  constexpr bool kUntied = true;
  constexpr Family kQwen2 = Family::kQwen2;
  constexpr Family kQwen3 = Family::kQwen3;
  static const auto* const presets = new std::vector<std::pair<std::string_view, ModelArch>>{
      {"llama3_8b", Llama(32, 4096, 32, 128, 14336, kNoScaling, kUntied)},
      {"llama3_70b", Llama(80, 8192, 64, 128, 28672, kNoScaling, kUntied)},
      {"llama3_1_8b", Llama(32, 4096, 32, 128, 14336, 8, kUntied)},
      {"llama3_1_70b", Llama(80, 8192, 64, 128, 28672, 8, kUntied)},
      {"llama3_1_405b", Llama(126, 16384, 128, 128, 53248, 8, kUntied)},
      {"llama3_2_1b", Llama(16, 2048, 32, 64, 8192, 32, kTied)},
      {"llama3_2_3b", Llama(28, 3072, 24, 128, 8192, 32, kTied)},
      {"qwen2_5_0_5b", Qwen(kQwen2, {24, 896, 14, 2, 64, 4864, 151936, 32768, kTied})},
      {"qwen2_5_1_5b", Qwen(kQwen2, {28, 1536, 12, 2, 128, 8960, 151936, 131072, kTied})},
      {"qwen2_5_3b", Qwen(kQwen2, {36, 2048, 16, 2, 128, 11008, 151936, 32768, kTied})},
      {"qwen2_5_7b", Qwen(kQwen2, {28, 3584, 28, 4, 128, 18944, 152064, 131072, kUntied})},
      {"qwen2_5_14b", Qwen(kQwen2, {48, 5120, 40, 8, 128, 13824, 152064, 131072, kUntied, 1e-5})},
      {"qwen2_5_32b", Qwen(kQwen2, {64, 5120, 40, 8, 128, 27648, 152064, 131072, kUntied, 1e-5})},
      {"qwen3_0_6b", Qwen(kQwen3, {28, 1024, 16, 8, 128, 3072, 151936, 40960, kTied})},
      {"qwen3_1_7b", Qwen(kQwen3, {28, 2048, 16, 8, 128, 6144, 151936, 40960, kTied})},
      {"qwen3_4b", Qwen(kQwen3, {36, 2560, 32, 8, 128, 9728, 151936, 40960, kTied})},
      {"qwen3_8b", Qwen(kQwen3, {36, 4096, 32, 8, 128, 12288, 151936, 40960, kUntied})},
      {"qwen3_14b", Qwen(kQwen3, {40, 5120, 40, 8, 128, 17408, 151936, 40960, kUntied})},
      {"qwen3_32b", Qwen(kQwen3, {64, 5120, 64, 8, 128, 25600, 151936, 40960, kUntied})},
      {"qwen3_30b_a3b", QwenMoe({48, 2048, 32, 4, 128, 6144, 151936, 40960, kUntied}, 768)},
      {"qwen3_235b_a22b", QwenMoe({94, 4096, 64, 4, 128, 12288, 151936, 40960, kUntied}, 1536)},
      {"smollm2_135m", SmolLm2()},
      {"tiny_llama", Tiny(Family::kLlama, kUntied)},
      {"tiny_qwen2", Tiny(kQwen2, kTied)},
      {"tiny_qwen3", Tiny(kQwen3, kUntied)},
      {"tiny_qwen3_moe", Tiny(Family::kQwen3Moe, kUntied)}};
  return *presets;
}

}  // namespace

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, arch] : Presets()) names.push_back(name);
  return names;
}

absl::StatusOr<ModelArch> FindPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, arch] : Presets()) {
    if (known == name) return arch;
    names.emplace_back(known);
  }
  const std::optional<std::string> nearest = NearestKey(name, names);
  return absl::NotFoundError(absl::StrCat("there is no preset \"", std::string(name), "\"",
                                          nearest.has_value() ? absl::StrCat("; did you mean \"", *nearest, "\"?") : "",
                                          " Presets: ", absl::StrJoin(names, ", ")));
}

}  // namespace slipway::engine::arch
