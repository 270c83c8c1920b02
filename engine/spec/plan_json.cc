// A plan for programs: PlanJson of plan.h.
#include <string>
#include <utility>

#include "engine/spec/plan.h"

namespace slipway::engine::spec {
namespace {

using Json = nlohmann::ordered_json;

Json MemoryJson(const arch::MemoryEstimate& memory) {
  return {{"total", memory.Total()},           {"weights", memory.weights},
          {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"activations", memory.activations}, {"logits", memory.logits}};
}

Json GroupsJson(const Plan& plan) {
  Json all = Json::array();
  for (const PlannedGroups& groups : plan.groups) {
    all.push_back({{"kind", std::string(topology::GroupKindName(groups.kind))},
                   {"count", groups.count},
                   {"size", groups.size},
                   {"nodes", groups.nodes},
                   {"examples", groups.examples}});
  }
  return all;
}

Json StagesJson(const Plan& plan) {
  Json all = Json::array();
  for (const topology::PipelineStage& stage : plan.partition.stages) {
    all.push_back({{"pipeline_rank", stage.pp_rank},
                   {"chunk", stage.chunk},
                   {"first_layer", stage.first_layer},
                   {"num_layers", stage.num_layers},
                   {"embedding", stage.has_embedding},
                   {"head", stage.has_head}});
  }
  return all;
}

Json TrafficJson(const Plan& plan) {
  Json all = Json::array();
  for (const arch::Traffic& traffic : plan.traffic) {
    all.push_back({{"operation", traffic.operation},
                   {"group", std::string(topology::GroupKindName(traffic.group))},
                   {"what", traffic.what},
                   {"group_size", traffic.group_size},
                   {"operations", traffic.operations},
                   {"bytes_sent_by_a_rank", traffic.bytes},
                   {"bytes_leaving_a_node", traffic.node_bytes}});
  }
  return all;
}

}  // namespace

Json PlanJson(const Plan& plan) {
  Json json = {{"world_size", plan.world_size},
               {"nodes", plan.nodes},
               {"gpus_per_node", plan.gpus_per_node},
               {"order", plan.order},
               {"data_parallel_size", plan.mesh.dp},
               {"tensor_model_parallel_size", plan.mesh.tp},
               {"pipeline_model_parallel_size", plan.mesh.pp},
               {"virtual_pipeline_model_parallel_size", plan.partition.vpp},
               {"context_parallel_size", plan.mesh.cp},
               {"expert_model_parallel_size", plan.mesh.ep},
               {"expert_tensor_parallel_size", plan.mesh.etp},
               {"expert_data_parallel_size", plan.edp},
               {"layers_by_stage", plan.partition.Text()},
               {"micro_batches_per_step", plan.micro_batches_per_step},
               {"tokens_per_step", plan.tokens_per_step},
               {"tokens_of_rank", plan.tokens_of_rank},
               {"tokens_between_blocks", plan.tokens_between_blocks},
               {"steps", plan.steps},
               {"samples", plan.samples},
               {"parameters", plan.parameters},
               {"flop_per_step", plan.flops_per_step},
               {"ideal_bubble", plan.ideal_bubble},
               {"simulated_bubble", plan.simulated_bubble},
               {"memory_of_a_rank", MemoryJson(plan.memory)}};
  Json by_stage = Json::array();
  for (const arch::MemoryEstimate& memory : plan.memory_by_stage) by_stage.push_back(MemoryJson(memory));
  json["memory_by_pipeline_rank"] = std::move(by_stage);
  json["stages"] = StagesJson(plan);
  json["groups"] = GroupsJson(plan);
  json["traffic"] = TrafficJson(plan);
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["checkpoints_kept_bytes"] = plan.checkpoints_kept_bytes;
  return json;
}

}  // namespace slipway::engine::spec
