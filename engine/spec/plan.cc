#include "engine/spec/plan.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/arch/param_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"

namespace slipway::engine::spec {
namespace {

// fp32 master weights and both moments; the computing weights follow from the master.
constexpr int64_t kCheckpointBytesPerParameter = 12;

std::string Count(double value) {
  if (value >= 1e12) return absl::StrFormat("%.2fT", value / 1e12);
  if (value >= 1e9) return absl::StrFormat("%.2fB", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.1fM", value / 1e6);
  return absl::StrFormat("%.0f", value);
}

std::string RankText(int rank, const topology::Coordinates& at) {
  return StrCat("rank ", rank, ": dp ", at.dp, " tp ", at.tp, " pp ", at.pp, " cp ", at.cp);
}

std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

}  // namespace

absl::StatusOr<Plan> MakePlan(const v1::TrainingSpec& resolved, const arch::ModelArch& model) {
  const v1::ParallelismSpec& sizes = resolved.parallelism();
  const v1::TrainSpec& training = resolved.training();
  Plan plan;
  SLIPWAY_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(sizes));
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition, PartitionOf(sizes, model.num_layers));
  plan.mesh = mesh.sizes();
  plan.world_size = mesh.world();
  for (int rank = 0; rank < std::min<int64_t>(plan.world_size, kMaxPlanRanks); ++rank) {
    plan.ranks.push_back(mesh.CoordinatesOf(rank));
  }
  plan.layers_by_stage = partition.Text();
  plan.micro_batches_per_step = MicroBatchesPerStep(resolved);
  plan.tokens_per_step = training.global_batch_size() * training.seq_length();
  plan.steps = training.train_iters();
  plan.samples = plan.steps * training.global_batch_size();
  plan.parameters = arch::ParameterCount(model);
  const int64_t divisor = resolved.model().make_vocab_size_divisible_by();
  plan.flops_per_step = arch::FlopsOfBatch(model, training.global_batch_size(), training.seq_length(),
                                           arch::PaddedVocabSize(model.vocab_size, divisor, plan.mesh.tp))
                            .Total();
  arch::MemoryOptions memory{
      .mesh = plan.mesh,
      .bytes = resolved.precision().name() == "fp32" ? arch::StateBytes::Fp32() : arch::StateBytes::Bf16Mixed(),
      .seq_length = training.seq_length(),
      .micro_batch_size = training.micro_batch_size(),
      .num_microbatches = plan.micro_batches_per_step,
      .make_vocab_size_divisible_by = divisor,
      .sequence_parallel = sizes.sequence_parallel(),
      .use_distributed_optimizer = sizes.use_distributed_optimizer(),
      .fused_attention = model.attention_dropout == 0};
  SLIPWAY_ASSIGN_OR_RETURN(plan.memory, arch::EstimatePeakMemory(model, memory));
  plan.checkpoint_bytes = plan.parameters * kCheckpointBytesPerParameter;
  const v1::CheckpointSpec& checkpoint = resolved.checkpoint();
  const int64_t all = checkpoint.save_interval() > 0 ? plan.steps / checkpoint.save_interval() + 1 : 1;
  const int64_t kept = checkpoint.keep_last() > 0 ? std::min<int64_t>(all, int64_t{checkpoint.keep_last()} + 1) : all;
  plan.checkpoints_kept_bytes = kept * plan.checkpoint_bytes;
  return plan;
}

std::string PlanText(const Plan& plan) {
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n");
  };
  line("layout", topology::MeshText(plan.mesh));
  for (size_t rank = 0; rank < plan.ranks.size() && plan.world_size > 1; ++rank) {
    line("", RankText(static_cast<int>(rank), plan.ranks[rank]));
  }
  if (plan.world_size > static_cast<int64_t>(plan.ranks.size())) {
    line("", StrCat("… and ", plan.world_size - static_cast<int64_t>(plan.ranks.size()), " more"));
  }
  line("layers by stage", plan.layers_by_stage);
  const bool small = plan.parameters < 1'000'000;
  line("parameters",
       StrCat(plan.parameters, small ? "" : StrCat(" (", Count(static_cast<double>(plan.parameters)), ")")));
  line("steps", StrCat(plan.steps, " (", plan.samples, " samples)"));
  line("one step",
       StrCat(plan.micro_batches_per_step, plan.micro_batches_per_step == 1 ? " micro-batch" : " micro-batches",
              " on each data-parallel rank, at most ", plan.tokens_per_step, " tokens, ",
              absl::StrFormat("%.3g", plan.flops_per_step / 1e12), " TFLOP"));
  const arch::MemoryEstimate& memory = plan.memory;
  line("memory of a rank", StrCat("about ", Bytes(memory.Total()), " (weights ", Bytes(memory.weights), ", gradients ",
                                  Bytes(memory.gradients), ", optimizer ", Bytes(memory.optimizer), ", activations ",
                                  Bytes(memory.activations), ", logits ", Bytes(memory.logits), ")"));
  line("checkpoints", StrCat("about ", FormatBytes(plan.checkpoint_bytes), " each, ",
                             FormatBytes(plan.checkpoints_kept_bytes), " at most"));
  return text;
}

nlohmann::ordered_json PlanJson(const Plan& plan) {
  nlohmann::ordered_json json = {{"world_size", plan.world_size},
                                 {"data_parallel_size", plan.mesh.dp},
                                 {"tensor_model_parallel_size", plan.mesh.tp},
                                 {"pipeline_model_parallel_size", plan.mesh.pp},
                                 {"context_parallel_size", plan.mesh.cp},
                                 {"layers_by_stage", plan.layers_by_stage},
                                 {"micro_batches_per_step", plan.micro_batches_per_step},
                                 {"tokens_per_step", plan.tokens_per_step},
                                 {"steps", plan.steps},
                                 {"samples", plan.samples},
                                 {"parameters", plan.parameters},
                                 {"flop_per_step", plan.flops_per_step}};
  const arch::MemoryEstimate& memory = plan.memory;
  json["memory_of_a_rank"] = {{"total", memory.Total()},           {"weights", memory.weights},
                              {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
                              {"activations", memory.activations}, {"logits", memory.logits}};
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["checkpoints_kept_bytes"] = plan.checkpoints_kept_bytes;
  return json;
}

}  // namespace slipway::engine::spec
