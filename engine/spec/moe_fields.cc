#include "engine/spec/moe_fields.h"

#include <algorithm>
#include <array>

#include "common/str_cat.h"
#include "engine/spec/spec_fields.h"

namespace slipway::engine::spec {
namespace {

constexpr std::array<std::string_view, 8> kRoutingSettings = {
    "moe_router_bias_update_rate", "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",          "moe_z_loss_coeff",
    "moe_expert_capacity_factor",  "moe_pad_expert_input_to_capacity",
    "moe_token_drop_policy",       "moe_token_dispatcher_type"};

bool IsMoeField(const std::string& name) { return name == "num_moe_experts" || name.starts_with("moe_"); }

}  // namespace

bool IsRoutingSetting(std::string_view field) {
  return std::find(kRoutingSettings.begin(), kRoutingSettings.end(), field) != kRoutingSettings.end();
}

std::vector<std::string> MoeFieldsOf(const v1::TrainingSpec& spec) {
  std::vector<std::string> set;
  for (const FieldPath& field : AllFields()) {
    if (field.fields.front()->name() != "model" || !IsMoeField(field.fields[1]->name())) continue;
    if (HasValue(spec, field)) set.push_back(field.path);
  }
  return set;
}

void FillMoeFromPreset(const arch::MoeArch& preset, v1::ModelSpec* model) {
  if (!model->has_num_moe_experts()) model->set_num_moe_experts(preset.num_experts);
  if (!model->has_moe_router_topk()) model->set_moe_router_topk(preset.topk);
  if (!model->has_moe_ffn_hidden_size()) model->set_moe_ffn_hidden_size(preset.ffn_hidden_size);
  if (!model->has_moe_layer_freq()) model->set_moe_layer_freq(arch::LayerPatternText(preset.layers));
  if (!model->has_moe_router_pre_softmax()) model->set_moe_router_pre_softmax(preset.pre_softmax);
  if (!model->has_moe_aux_loss_coeff()) model->set_moe_aux_loss_coeff(preset.aux_loss_coeff);
  FillExplicitMoe(model);
}

void FillExplicitMoe(v1::ModelSpec* model) {
  const arch::MoeArch defaults;
  if (!model->has_moe_shared_expert_intermediate_size()) model->set_moe_shared_expert_intermediate_size(0);
  if (!model->has_moe_shared_expert_gate()) model->set_moe_shared_expert_gate(false);
  if (!model->has_moe_layer_freq()) model->set_moe_layer_freq("1");
  if (!model->has_moe_router_score_function()) model->set_moe_router_score_function("softmax");
  if (!model->has_moe_router_pre_softmax()) model->set_moe_router_pre_softmax(false);
  if (!model->has_moe_router_enable_expert_bias()) model->set_moe_router_enable_expert_bias(false);
  if (!model->has_moe_router_bias_update_rate()) model->set_moe_router_bias_update_rate(defaults.bias_update_rate);
  if (!model->has_moe_router_topk_scaling_factor()) model->set_moe_router_topk_scaling_factor(1);
  if (!model->has_moe_router_load_balancing_type()) model->set_moe_router_load_balancing_type("seq_aux_loss");
  if (!model->has_moe_aux_loss_coeff()) model->set_moe_aux_loss_coeff(0);
  if (!model->has_moe_z_loss_coeff()) model->set_moe_z_loss_coeff(0);
  if (!model->has_moe_pad_expert_input_to_capacity()) model->set_moe_pad_expert_input_to_capacity(false);
  if (!model->has_moe_token_drop_policy()) model->set_moe_token_drop_policy("probs");
  if (!model->has_moe_token_dispatcher_type()) model->set_moe_token_dispatcher_type("alltoall");
}

arch::MoeArch MoeFromFields(const v1::ModelSpec& model) {
  arch::MoeArch moe;
  moe.num_experts = model.num_moe_experts();
  moe.topk = model.moe_router_topk();
  moe.ffn_hidden_size = model.moe_ffn_hidden_size();
  moe.shared_expert_intermediate_size = model.moe_shared_expert_intermediate_size();
  moe.shared_expert_gate = model.moe_shared_expert_gate();
  if (const auto layers = arch::ParseLayerPattern(model.moe_layer_freq(), model.num_layers()); layers.ok()) {
    moe.layers = *layers;
  }
  moe.score_function = arch::RouterScoreFromName(model.moe_router_score_function()).value_or(moe.score_function);
  moe.pre_softmax = model.moe_router_pre_softmax();
  moe.expert_bias = model.moe_router_enable_expert_bias();
  moe.num_groups = model.moe_router_num_groups();
  moe.group_topk = model.moe_router_group_topk();
  if (model.has_moe_router_topk_scaling_factor()) moe.topk_scaling_factor = model.moe_router_topk_scaling_factor();
  ApplyRoutingSettings(model, &moe);
  return moe;
}

void ApplyRoutingSettings(const v1::ModelSpec& model, arch::MoeArch* moe) {
  if (model.has_moe_router_bias_update_rate()) moe->bias_update_rate = model.moe_router_bias_update_rate();
  if (model.has_moe_router_load_balancing_type()) {
    moe->load_balancing =
        arch::LoadBalancingFromName(model.moe_router_load_balancing_type()).value_or(moe->load_balancing);
  }
  if (model.has_moe_aux_loss_coeff()) moe->aux_loss_coeff = model.moe_aux_loss_coeff();
  if (model.has_moe_z_loss_coeff()) moe->z_loss_coeff = model.moe_z_loss_coeff();
  if (model.has_moe_expert_capacity_factor()) moe->capacity_factor = model.moe_expert_capacity_factor();
  if (model.has_moe_pad_expert_input_to_capacity()) moe->pad_to_capacity = model.moe_pad_expert_input_to_capacity();
  if (model.has_moe_token_drop_policy()) {
    moe->drop_policy = arch::DropPolicyFromName(model.moe_token_drop_policy()).value_or(moe->drop_policy);
  }
  if (model.has_moe_token_dispatcher_type()) {
    moe->dispatcher = arch::DispatcherFromName(model.moe_token_dispatcher_type()).value_or(moe->dispatcher);
  }
}

}  // namespace slipway::engine::spec
