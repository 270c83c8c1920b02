// ParseHfConfig and ReadHfConfig of hf_config.h.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/hf_config_fields.h"
#include "engine/arch/hf_config_json.h"

namespace slipway::engine::arch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// The rotary settings of one spelling.
struct Rope {
  double base = 0;
  std::optional<RopeScaling> scaling;

  friend bool operator==(const Rope&, const Rope&) = default;
};

class Reader {
 public:
  Reader(const Json& config, std::vector<Fault>& faults) : config_(config), faults_(faults), top_(config, "", faults) {}

  ModelArch Read() {
    const std::optional<Family> family = ReadFamily();
    if (!family.has_value()) return arch_;
    arch_.family = *family;
    arch_.add_qkv_bias = *family == Family::kQwen2;
    arch_.qk_layernorm = arch_.NormalisesQueriesAndKeys();
    ReadSizes();
    if (*family == Family::kQwen3Moe) arch_.moe = ReadHfMoe(top_, arch_.num_layers);
    ReadRope();
    RefuseVariants();
    ReadSlidingWindow();
    ReadTokenIds();
    ReadDtype();
    return arch_;
  }

 private:
  std::optional<Family> ReadFamily() {
    std::optional<Family> by_class;
    if (const Json* classes = top_.Find("architectures"); classes != nullptr) {
      if (!classes->is_array() || classes->size() != 1 || !classes->front().is_string()) {
        top_.Add("architectures", "must be a list of one class name");
        return std::nullopt;
      }
      by_class = FamilyOfClass(classes->front().get<std::string>());
      if (!by_class.has_value()) {
        top_.Add("architectures", absl::StrCat("is not supported; supported are ", SupportedClasses()));
        return std::nullopt;
      }
    }
    const std::optional<std::string> type = top_.String("model_type");
    if (!type.has_value()) {
      if (!by_class.has_value()) {
        top_.Add("architectures", absl::StrCat("is missing, and so is model_type; supported are ", SupportedClasses()));
      }
      return by_class;
    }
    const std::optional<Family> by_type = FamilyFromName(*type);
    if (!by_type.has_value()) {
      top_.Add("model_type", absl::StrCat("is not supported; supported are ", SupportedTypes()));
      return std::nullopt;
    }
    if (by_class.has_value() && by_class != by_type) {
      top_.Add("model_type", absl::StrCat("does not belong to architectures = ", HfClassName(*by_class)));
      return std::nullopt;
    }
    return by_type;
  }

  void ReadSizes() {
    arch_.num_layers = top_.RequiredInt("num_hidden_layers");
    arch_.hidden_size = top_.RequiredInt("hidden_size");
    arch_.num_attention_heads = top_.RequiredInt("num_attention_heads");
    arch_.ffn_hidden_size = top_.RequiredInt("intermediate_size");
    arch_.vocab_size = top_.RequiredInt("vocab_size");
    arch_.max_position_embeddings = top_.RequiredInt("max_position_embeddings");
    arch_.norm_epsilon = top_.RequiredNumber("rms_norm_eps");
    // Llama's config has meant "as many as attention heads" by absence from the start; Qwen's classes assume numbers.
    arch_.num_query_groups = arch_.family == Family::kLlama && top_.Find("num_key_value_heads") == nullptr
                                 ? arch_.num_attention_heads
                                 : top_.RequiredInt("num_key_value_heads");
    if (top_.Find("head_dim") != nullptr) {
      arch_.kv_channels = top_.Int("head_dim").value_or(0);
    } else if (arch_.num_attention_heads > 0 && arch_.hidden_size % arch_.num_attention_heads == 0) {
      arch_.kv_channels = arch_.hidden_size / arch_.num_attention_heads;
    } else if (arch_.num_attention_heads > 0) {
      top_.Add("head_dim", absl::StrCat("is missing, and hidden_size = ", arch_.hidden_size,
                                        " is not a multiple of num_attention_heads = ", arch_.num_attention_heads));
    }
    arch_.untie_embeddings_and_output_weights = !top_.Bool("tie_word_embeddings").value_or(false);
    arch_.init_method_std = top_.Number("initializer_range").value_or(0.02);
    arch_.attention_dropout = top_.Number("attention_dropout").value_or(0);
  }

  void ReadRope() {
    const std::optional<Rope> old_spelling = ReadTransformers4Rope();
    const std::optional<Rope> new_spelling = ReadTransformers5Rope();
    if (!old_spelling.has_value() && !new_spelling.has_value()) {
      if (faults_.empty() || !rope_fault_) {
        top_.Add("rope_theta", "is missing, and so is rope_parameters.rope_theta; the model's output depends on it");
      }
      return;
    }
    if (old_spelling.has_value() && new_spelling.has_value() && *old_spelling != *new_spelling) {
      top_.Add("rope_parameters", "contradicts rope_theta and rope_scaling; make them agree or remove one spelling");
    }
    const Rope& rope = new_spelling.has_value() ? *new_spelling : *old_spelling;
    arch_.rotary_base = rope.base;
    arch_.rope_scaling = rope.scaling;
  }

  std::optional<Rope> ReadTransformers4Rope() {
    const bool has_scaling = top_.Find("rope_scaling") != nullptr;
    if (top_.Find("rope_theta") == nullptr) {
      // transformers 5 accepts a `rope_scaling` that holds what `rope_parameters` would.
      if (has_scaling && top_.Find("rope_parameters") == nullptr) return ReadRopeObject("rope_scaling", std::nullopt);
      return std::nullopt;
    }
    const std::optional<double> base = top_.Number("rope_theta");
    if (!base.has_value()) {
      rope_fault_ = true;
      return std::nullopt;
    }
    if (!has_scaling) return Rope{*base, std::nullopt};
    return ReadRopeObject("rope_scaling", base);
  }

  std::optional<Rope> ReadTransformers5Rope() {
    if (top_.Find("rope_parameters") == nullptr) return std::nullopt;
    return ReadRopeObject("rope_parameters", std::nullopt);
  }

  // `base` is given where the object does not hold it.
  std::optional<Rope> ReadRopeObject(const char* key, std::optional<double> base) {
    const size_t faults_before = faults_.size();
    const Json& object = *top_.Find(key);
    if (!object.is_object()) {
      top_.Add(key, "must be an object or null");
      rope_fault_ = true;
      return std::nullopt;
    }
    Fields fields(object, absl::StrCat(key, "."), faults_);
    if (fields.Find("rope_theta") != nullptr || !base.has_value()) {
      const double own = fields.RequiredNumber("rope_theta");
      if (base.has_value() && *base != own) fields.Add("rope_theta", absl::StrCat("contradicts rope_theta = ", *base));
      base = own;
    }
    Rope rope{*base, ReadScaling(fields)};
    if (const std::optional<double> part = fields.Number("partial_rotary_factor"); part.value_or(1) != 1) {
      fields.Add("partial_rotary_factor", "is not supported; only 1");
    }
    if (faults_.size() == faults_before) return rope;
    rope_fault_ = true;
    return std::nullopt;
  }

  static std::optional<RopeScaling> ReadScaling(Fields& fields) {
    const std::optional<std::string> type = fields.String("rope_type");
    const std::optional<std::string> legacy = fields.String("type");
    if (type.has_value() && legacy.has_value() && *type != *legacy) {
      fields.Add("type", absl::StrCat("contradicts rope_type = ", *type));
      return std::nullopt;
    }
    const char* key = type.has_value() ? "rope_type" : "type";
    if (!type.has_value() && !legacy.has_value()) {
      fields.Add("rope_type", "is missing; supported are default, llama3");
      return std::nullopt;
    }
    const std::string& name = type.has_value() ? *type : *legacy;
    if (name == "default") return std::nullopt;
    if (name != "llama3") {
      fields.Add(key, "is not supported; supported are default, llama3");
      return std::nullopt;
    }
    return RopeScaling{.factor = fields.RequiredNumber("factor"),
                       .low_freq_factor = fields.RequiredNumber("low_freq_factor"),
                       .high_freq_factor = fields.RequiredNumber("high_freq_factor"),
                       .original_max_position_embeddings = fields.RequiredInt("original_max_position_embeddings")};
  }

  // Settings of the same classes that would change the output and that we do not compute.
  void RefuseVariants() {
    if (top_.String("hidden_act").value_or("silu") != "silu") top_.Add("hidden_act", "is not supported; only silu");
    if (arch_.family == Family::kLlama && top_.Bool("mlp_bias").value_or(false)) {
      top_.Add("mlp_bias", "is not supported; only false");
    }
    if (arch_.family != Family::kQwen2 && top_.Bool("attention_bias").value_or(false)) {
      top_.Add("attention_bias", absl::StrCat("is not supported for ", HfClassName(arch_.family),
                                              ", where it also adds a bias to o_proj; only false"));
    }
    if (top_.Number("partial_rotary_factor").value_or(1) != 1) {
      top_.Add("partial_rotary_factor", "is not supported; only 1");
    }
    if (top_.Bool("rope_interleaved").value_or(false)) top_.Add("rope_interleaved", "is not supported; only false");
    if (top_.Find("quantization_config") != nullptr) {
      top_.Add("quantization_config", "quantised checkpoints are not supported; use the model's unquantised weights");
    }
  }

  void ReadSlidingWindow() {
    if (const Json* types = top_.Find("layer_types"); types != nullptr) {
      bool full = types->is_array();
      for (const Json& type : *types) full = full && type.is_string() && type.get<std::string>() == "full_attention";
      if (!full) top_.Add("layer_types", "is not supported; only full_attention in every layer");
    }
    if (arch_.family == Family::kLlama || !top_.Bool("use_sliding_window").value_or(false)) return;
    if (top_.Find("sliding_window") == nullptr) return;
    // The window applies from layer max_window_layers on.
    const std::optional<int64_t> first = top_.Int("max_window_layers");
    if (first.has_value() && *first >= arch_.num_layers) return;
    top_.Add("use_sliding_window", "sliding-window attention is not supported; only false");
  }

  void ReadTokenIds() {
    arch_.bos_token_id = top_.Int("bos_token_id");
    const Json* eos = top_.Find("eos_token_id");
    if (eos == nullptr) return;
    const Json ids = eos->is_array() ? *eos : Json::array({*eos});
    for (const Json& id : ids) {
      if (!Fields::IsInt64(id)) {
        top_.Add("eos_token_id", "must be an integer or a list of integers");
        return;
      }
      arch_.eos_token_ids.push_back(id.get<int64_t>());
    }
  }

  void ReadDtype() {
    const std::optional<DType> old_spelling = DtypeOf("torch_dtype");
    const std::optional<DType> new_spelling = DtypeOf("dtype");
    if (old_spelling.has_value() && new_spelling.has_value() && old_spelling != new_spelling) {
      top_.Add("dtype", absl::StrCat("contradicts torch_dtype = ", std::string(DTypeName(*old_spelling))));
    }
    arch_.dtype = new_spelling.value_or(old_spelling.value_or(DType::kFloat32));
  }

  std::optional<DType> DtypeOf(const char* key) {
    const std::optional<std::string> name = top_.String(key);
    if (!name.has_value()) return std::nullopt;
    const std::optional<DType> dtype = DTypeFromName(*name);
    if (!dtype.has_value() || !IsFloatingPoint(*dtype)) {
      top_.Add(key, "is not supported; supported are float32, bfloat16, float16, float64");
      return std::nullopt;
    }
    return dtype;
  }

  const Json& config_;
  std::vector<Fault>& faults_;
  Fields top_;
  ModelArch arch_;
  bool rope_fault_ = false;  // the rotary settings are there, but wrong
};

// config.json's spelling of a field of ours, for messages about a file.
std::string HfPath(const std::string& path) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"model.num_layers", "num_hidden_layers"},
      {"model.num_query_groups", "num_key_value_heads"},
      {"model.kv_channels", "head_dim"},
      {"model.ffn_hidden_size", "intermediate_size"},
      {"model.rotary_base", "rope_theta"},
      {"model.norm_epsilon", "rms_norm_eps"},
      {"model.init_method_std", "initializer_range"},
      {"model.num_moe_experts", "num_experts"},
      {"model.moe_router_topk", "num_experts_per_tok"},
      {"model.moe_ffn_hidden_size", "moe_intermediate_size"},
      {"model.moe_layer_freq", "mlp_only_layers"},
      {"model.moe_aux_loss_coeff", "router_aux_loss_coef"}};
  for (const auto& [ours, theirs] : kNames) {
    if (path == ours) return std::string(theirs);
  }
  return path.starts_with("model.") ? path.substr(6) : path;
}

}  // namespace

absl::StatusOr<ModelArch> ParseHfConfig(std::string_view json_text, std::string_view source) {
  SLIPWAY_ASSIGN_OR_RETURN(const Json config, ParseConfigObject(json_text, source));
  std::vector<Fault> faults;
  const ModelArch arch = Reader(config, faults).Read();
  if (faults.empty()) {
    faults = Validate(arch);
    for (Fault& fault : faults) fault.path = HfPath(fault.path);
  }
  for (Fault& fault : faults) fault.path = absl::StrCat(std::string(source), ": ", fault.path);
  SLIPWAY_RETURN_IF_ERROR(FaultsToStatus(faults));
  return arch;
}

absl::StatusOr<ModelArch> ReadHfConfig(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || size > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", error ? error.message() : absl::StrCat(size, " bytes; at most ", kMaxConfigBytes)));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad() || !file.is_open()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return ParseHfConfig(text, path);
}

}  // namespace slipway::engine::arch
