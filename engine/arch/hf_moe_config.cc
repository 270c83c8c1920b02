// The experts in config.json (hf_config_json.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/arch/hf_config_fields.h"
#include "engine/arch/hf_config_json.h"

namespace slipway::engine::arch {
namespace {

using Json = nlohmann::ordered_json;

int64_t ReadNumExperts(Fields& fields) {
  const std::optional<int64_t> old_spelling = fields.Int("num_experts");
  const std::optional<int64_t> new_spelling = fields.Int("num_local_experts");
  if (old_spelling.has_value() && new_spelling.has_value() && *old_spelling != *new_spelling) {
    fields.Add("num_local_experts", absl::StrCat("contradicts num_experts = ", *old_spelling));
  }
  if (new_spelling.has_value()) return *new_spelling;
  return fields.RequiredInt("num_experts");
}

// Layer i has experts where (i + 1) is a multiple of decoder_sparse_step and i is not among mlp_only_layers.
std::vector<bool> LayersOf(int64_t num_layers, int64_t sparse_step, const std::vector<int64_t>& mlp_only) {
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const bool dense = std::find(mlp_only.begin(), mlp_only.end(), layer) != mlp_only.end();
    layers.push_back(!dense && (layer + 1) % sparse_step == 0);
  }
  return NormalPattern(std::move(layers));
}

std::vector<bool> ReadLayers(Fields& fields, int64_t num_layers) {
  const int64_t sparse_step = fields.Int("decoder_sparse_step").value_or(1);
  if (sparse_step < 1) {
    fields.Add("decoder_sparse_step", "must be at least 1");
    return {};
  }
  std::vector<int64_t> mlp_only;
  if (const Json* list = fields.Find("mlp_only_layers"); list != nullptr) {
    if (!list->is_array() || !std::all_of(list->begin(), list->end(), Fields::IsInt64)) {
      fields.Add("mlp_only_layers", "must be a list of layer numbers");
      return {};
    }
    for (const Json& layer : *list) mlp_only.push_back(layer.get<int64_t>());
  }
  if (num_layers < 1 || num_layers > 100'000) return {};  // a fault of its own
  return LayersOf(num_layers, sparse_step, mlp_only);
}

}  // namespace

MoeArch ReadHfMoe(Fields& fields, int64_t num_layers) {
  MoeArch moe;
  moe.num_experts = ReadNumExperts(fields);
  moe.topk = fields.RequiredInt("num_experts_per_tok");
  moe.ffn_hidden_size = fields.RequiredInt("moe_intermediate_size");
  if (fields.Find("norm_topk_prob") == nullptr) {
    fields.Add("norm_topk_prob", "is missing; the model's output depends on it");
  }
  moe.pre_softmax = !fields.Bool("norm_topk_prob").value_or(true);
  moe.layers = ReadLayers(fields, num_layers);
  // No output depends on it: the default of every version of transformers.
  moe.aux_loss_coeff = fields.Number("router_aux_loss_coef").value_or(0.001);
  if (fields.Int("shared_expert_intermediate_size").value_or(0) != 0) {
    fields.Add("shared_expert_intermediate_size", "is not a setting of Qwen3MoeForCausalLM; only 0");
  }
  return moe;
}

void WriteHfMoe(const MoeArch& moe, int64_t num_layers, Json& config) {
  SetKey(config, "num_experts", moe.num_experts);
  SetKey(config, "num_local_experts", moe.num_experts);
  SetKey(config, "num_experts_per_tok", moe.topk);
  SetKey(config, "moe_intermediate_size", moe.ffn_hidden_size);
  SetKey(config, "norm_topk_prob", !moe.pre_softmax);
  SetKey(config, "router_aux_loss_coef", moe.aux_loss_coeff);
  std::vector<Fault> faults;
  Fields present(config, "", faults);
  if (ReadLayers(present, num_layers) == moe.layers && faults.empty() && config.contains("decoder_sparse_step")) return;
  Json dense = Json::array();
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (!moe.HasExperts(layer)) dense.push_back(layer);
  }
  SetKey(config, "decoder_sparse_step", 1);
  SetKey(config, "mlp_only_layers", std::move(dense));
}

}  // namespace slipway::engine::arch
