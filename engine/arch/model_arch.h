// The architecture of a decoder model: what config.json, a preset or the spec's model section come down to, in
// Megatron's names. Everything else about a model follows from it: BuildParamTable (param_spec.h), estimates
// (model_estimate.h). Plain data; thread-safe as such.
#ifndef SLIPWAY_ENGINE_ARCH_MODEL_ARCH_H_
#define SLIPWAY_ENGINE_ARCH_MODEL_ARCH_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/fault.h"
#include "engine/arch/moe_arch.h"

namespace slipway::engine::arch {

// All are pre-norm decoders with RMSNorm, rotary embeddings, grouped-query attention and SwiGLU.
enum class Family : uint8_t {
  kLlama,
  kQwen2,    // q, k and v have a bias
  kQwen3,    // q and k are normalised per head before the rotary embedding
  kQwen3Moe  // as kQwen3, with experts in place of the feed-forward block of some or all layers
};

// "llama", "qwen2", "qwen3", "qwen3_moe": the spec's model.architecture and config.json's model_type.
std::string_view FamilyName(Family family);
std::optional<Family> FamilyFromName(std::string_view name);

// Llama 3.1's stretching of the rotary frequencies (rope type "llama3").
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelArch {
  Family family = Family::kLlama;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;  // key/value heads
  int64_t kv_channels = 0;       // the size of one head; need not be hidden_size / num_attention_heads
  int64_t ffn_hidden_size = 0;   // of the layers without experts
  int64_t vocab_size = 0;  // rows of the embedding in the checkpoint, before any padding of ours
  int64_t max_position_embeddings = 0;
  double rotary_base = 0;
  std::optional<RopeScaling> rope_scaling;
  double norm_epsilon = 0;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  bool untie_embeddings_and_output_weights = false;
  std::optional<MoeArch> moe;  // what kQwen3Moe has and the others have not
  double init_method_std = 0.02;
  double attention_dropout = 0;
  double hidden_dropout = 0;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  DType dtype = DType::kFloat32;  // of the checkpoint's tensors

  int64_t QueryRows() const { return num_attention_heads * kv_channels; }
  int64_t KeyRows() const { return num_query_groups * kv_channels; }
  bool NormalisesQueriesAndKeys() const { return family == Family::kQwen3 || family == Family::kQwen3Moe; }

  friend bool operator==(const ModelArch&, const ModelArch&) = default;
};

// Every fault, with paths of the spec ("model.num_query_groups"). Empty when valid.
std::vector<Fault> Validate(const ModelArch& arch);

// What the CUDA kernels ask of a valid architecture beyond that: rows of whole 16-byte vectors that fit a thread
// block's shared memory, and head sizes of the attention kernels. `bytes` is the size of a compute element (2 or 4).
std::vector<Fault> ValidateForCuda(const ModelArch& arch, int64_t bytes);

// The kv_channels / 2 inverse frequencies of the rotary embedding, with Llama 3's scaling where the model has it:
// computed in double, rounded once. Pair i turns by position * result[i]; its members are the dimensions i and
// i + kv_channels / 2 of a head (Hugging Face's half-split convention).
// REQUIRES: Validate(arch) is empty.
std::vector<float> RopeInverseFrequencies(const ModelArch& arch);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_MODEL_ARCH_H_
