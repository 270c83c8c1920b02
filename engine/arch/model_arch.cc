#include "engine/arch/model_arch.h"

#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slipway::engine::arch {
namespace {

constexpr std::pair<Family, std::string_view> kFamilies[] = {
    {Family::kLlama, "llama"}, {Family::kQwen2, "qwen2"}, {Family::kQwen3, "qwen3"}, {Family::kQwen3Moe, "qwen3_moe"}};

class Checker {
 public:
  void Range(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    Add(field, absl::StrCat(value), absl::StrCat("must lie between ", low, " and ", high));
  }

  void Positive(const char* field, double value) {
    if (std::isfinite(value) && value > 0) return;
    Add(field, absl::StrCat(value), "must be a finite number above 0");
  }

  void Probability(const char* field, double value) {
    if (value >= 0 && value < 1) return;
    Add(field, absl::StrCat(value), "must be at least 0 and below 1");
  }

  void Add(const char* field, std::string value, std::string message) {
    faults_.push_back({absl::StrCat("model.", field), std::move(value), std::move(message)});
  }

  std::vector<Fault> Take() { return std::move(faults_); }

 private:
  std::vector<Fault> faults_;
};

void CheckFamily(const ModelArch& arch, Checker& check) {
  const std::string family(FamilyName(arch.family));
  const bool wants_bias = arch.family == Family::kQwen2;
  const bool wants_norm = arch.NormalisesQueriesAndKeys();
  const bool wants_experts = arch.family == Family::kQwen3Moe;
  if (arch.moe.has_value() != wants_experts) {
    check.Add("num_moe_experts", arch.moe.has_value() ? absl::StrCat(arch.moe->num_experts) : "",
              absl::StrCat("a ", family, " model ", wants_experts ? "has" : "has no", " experts"));
  }
  if (arch.add_qkv_bias != wants_bias) {
    check.Add("add_qkv_bias", arch.add_qkv_bias ? "true" : "false",
              absl::StrCat("a ", family, " model ", wants_bias ? "has" : "has no", " bias on q, k and v"));
  }
  if (arch.qk_layernorm != wants_norm) {
    check.Add("qk_layernorm", arch.qk_layernorm ? "true" : "false",
              absl::StrCat("a ", family, " model ", wants_norm ? "normalises" : "does not normalise", " q and k"));
  }
}

void CheckRope(const ModelArch& arch, Checker& check) {
  check.Positive("rotary_base", arch.rotary_base);
  if (!arch.rope_scaling.has_value()) return;
  const RopeScaling& scaling = *arch.rope_scaling;
  if (!(std::isfinite(scaling.factor) && scaling.factor >= 1)) {
    check.Add("rope_scaling.factor", absl::StrCat(scaling.factor), "must be at least 1");
  }
  check.Positive("rope_scaling.low_freq_factor", scaling.low_freq_factor);
  check.Positive("rope_scaling.high_freq_factor", scaling.high_freq_factor);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    check.Add("rope_scaling.high_freq_factor", absl::StrCat(scaling.high_freq_factor),
              absl::StrCat("must be above low_freq_factor = ", scaling.low_freq_factor));
  }
  check.Range("rope_scaling.original_max_position_embeddings", scaling.original_max_position_embeddings, 1,
              int64_t{1} << 40);
}

void CheckTokenIds(const ModelArch& arch, Checker& check) {
  const std::string range = absl::StrCat("must lie between 0 and model.vocab_size - 1 = ", arch.vocab_size - 1);
  if (arch.bos_token_id.has_value() && (*arch.bos_token_id < 0 || *arch.bos_token_id >= arch.vocab_size)) {
    check.Add("bos_token_id", absl::StrCat(*arch.bos_token_id), range);
  }
  for (int64_t id : arch.eos_token_ids) {
    if (id < 0 || id >= arch.vocab_size) check.Add("eos_token_id", absl::StrCat(id), range);
  }
}

}  // namespace

std::string_view FamilyName(Family family) {
  for (const auto& [value, name] : kFamilies) {
    if (value == family) return name;
  }
  return "";
}

std::optional<Family> FamilyFromName(std::string_view name) {
  for (const auto& [value, known] : kFamilies) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::vector<Fault> Validate(const ModelArch& arch) {
  Checker check;
  check.Range("num_layers", arch.num_layers, 1, 100'000);
  check.Range("hidden_size", arch.hidden_size, 1, 1'000'000);
  check.Range("num_attention_heads", arch.num_attention_heads, 1, 100'000);
  check.Range("num_query_groups", arch.num_query_groups, 1, 100'000);
  check.Range("kv_channels", arch.kv_channels, 2, 1024);
  check.Range("ffn_hidden_size", arch.ffn_hidden_size, 1, 10'000'000);
  check.Range("vocab_size", arch.vocab_size, 1, 100'000'000);
  check.Range("max_position_embeddings", arch.max_position_embeddings, 1, int64_t{1} << 40);
  if (arch.kv_channels % 2 != 0) {
    check.Add("kv_channels", absl::StrCat(arch.kv_channels),
              "must be even: the rotary embedding turns pairs of channels");
  }
  if (arch.num_query_groups > 0 && arch.num_attention_heads % arch.num_query_groups != 0) {
    check.Add("num_query_groups", absl::StrCat(arch.num_query_groups),
              absl::StrCat("model.num_attention_heads = ", arch.num_attention_heads, " is not a multiple of it"));
  }
  CheckRope(arch, check);
  check.Positive("norm_epsilon", arch.norm_epsilon);
  check.Positive("init_method_std", arch.init_method_std);
  check.Probability("attention_dropout", arch.attention_dropout);
  check.Probability("hidden_dropout", arch.hidden_dropout);
  if (!IsFloatingPoint(arch.dtype)) {
    check.Add("dtype", std::string(DTypeName(arch.dtype)), "must be a floating-point type");
  }
  CheckFamily(arch, check);
  CheckTokenIds(arch, check);
  std::vector<Fault> faults = check.Take();
  if (arch.moe.has_value()) {
    const std::vector<Fault> more = ValidateMoe(*arch.moe, arch.num_layers);
    faults.insert(faults.end(), more.begin(), more.end());
  }
  return faults;
}

std::vector<Fault> ValidateForCuda(const ModelArch& arch, int64_t bytes) {
  constexpr int64_t kVectorBytes = 16, kMaxRowBytes = 32768, kMaxHeadSize = 256, kHeadGrain = 8;
  std::vector<Fault> faults;
  const auto add = [&](std::string path, int64_t value, std::string rule) {
    faults.push_back({.path = std::move(path), .value = std::to_string(value), .message = std::move(rule)});
  };
  const int64_t grain = kVectorBytes / bytes, most = kMaxRowBytes / bytes;
  if (arch.hidden_size % grain != 0 || arch.hidden_size > most) {
    add("model.hidden_size", arch.hidden_size,
        absl::StrCat("must be a multiple of ", grain, " and at most ", most, " on CUDA in this precision"));
  }
  if (arch.kv_channels % kHeadGrain != 0 || arch.kv_channels > kMaxHeadSize) {
    add("model.kv_channels", arch.kv_channels,
        absl::StrCat("must be a multiple of ", kHeadGrain, " and at most ", kMaxHeadSize, " on CUDA"));
  }
  return faults;
}

std::vector<float> RopeInverseFrequencies(const ModelArch& arch) {
  std::vector<float> result;
  const int64_t pairs = arch.kv_channels / 2;
  result.reserve(pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    double frequency =
        std::pow(arch.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(arch.kv_channels));
    if (arch.rope_scaling.has_value()) {
      const RopeScaling& scaling = *arch.rope_scaling;
      const auto original = static_cast<double>(scaling.original_max_position_embeddings);
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > original / scaling.low_freq_factor) {
        frequency /= scaling.factor;
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth =
            (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
      }
    }
    result.push_back(static_cast<float>(frequency));
  }
  return result;
}

}  // namespace slipway::engine::arch
