#include "engine/spec/plan.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/arch/param_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"
#include "engine/topology/pipeline_schedule.h"

namespace slipway::engine::spec {
namespace {

// fp32 master weights and both moments; the computing weights follow from the master.
constexpr int64_t kCheckpointBytesPerParameter = 12;

// The simulated schedule has about so many micro-batches at most; more of them only make its steady part longer.
constexpr int64_t kMaxSimulatedMicroBatches = 4096;

// Whole groups of virtual stages are left out, and the rest after them stays: another one may be no valid schedule.
int64_t SimulatedMicroBatches(const v1::ParallelismSpec& sizes, int64_t count) {
  if (sizes.virtual_pipeline_model_parallel_size() == 1) return std::min(count, kMaxSimulatedMicroBatches);
  if (count <= kMaxSimulatedMicroBatches) return count;
  const int64_t set = sizes.microbatch_group_size_per_vp_stage();
  const int64_t group = set == 0 ? sizes.pipeline_model_parallel_size() : set;
  return std::max<int64_t>(kMaxSimulatedMicroBatches / group, 1) * group + count % group;
}

std::string Count(double value) {
  if (value >= 1e12) return absl::StrFormat("%.2fT", value / 1e12);
  if (value >= 1e9) return absl::StrFormat("%.2fB", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.1fM", value / 1e6);
  return absl::StrFormat("%.0f", value);
}

std::string RankText(int rank, const topology::Coordinates& at, const topology::MeshSizes& sizes) {
  const std::string experts = sizes.ep > 1 ? StrCat("; experts: ep ", at.ep, " etp ", at.etp, " edp ", at.edp) : "";
  return StrCat("rank ", rank, ": dp ", at.dp, " tp ", at.tp, " pp ", at.pp, " cp ", at.cp, experts);
}

std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

std::vector<PlannedGroups> PlanGroups(const topology::Mesh& mesh, int gpus_per_node) {
  std::vector<PlannedGroups> planned;
  for (topology::GroupList& list : mesh.AllGroups()) {
    PlannedGroups groups{.kind = list.kind,
                         .count = static_cast<int64_t>(list.groups.size()),
                         .size = static_cast<int>(list.groups.front().size())};
    for (const std::vector<int>& ranks : list.groups) {
      std::set<int> nodes;
      for (const int rank : ranks) nodes.insert(rank / gpus_per_node);
      groups.nodes = std::max(groups.nodes, static_cast<int>(nodes.size()));
    }
    if (list.groups.size() > kMaxPlanExamples) list.groups.resize(kMaxPlanExamples);
    groups.examples = std::move(list.groups);
    planned.push_back(std::move(groups));
  }
  return planned;
}

// How long each stage takes for one micro-batch, from its share of the model's operations.
std::vector<topology::StageTime> StageTimes(const v1::TrainingSpec& resolved, const arch::ModelArch& model,
                                            const topology::PipelinePartition& partition) {
  const topology::MeshSizes mesh = MeshSizesOf(resolved.parallelism());
  const v1::TrainSpec& training = resolved.training();
  const arch::TrainingFlops flops =
      arch::FlopsOfBatch(model, training.micro_batch_size(), training.seq_length(), model.vocab_size);
  const double ranks = static_cast<double>(mesh.tp) * mesh.cp;
  const double layer = (flops.Total() - flops.logits) / static_cast<double>(model.num_layers) / ranks;
  std::vector<topology::StageTime> times;
  for (const topology::PipelineStage& stage : partition.stages) {
    const double total = stage.num_layers * layer + (stage.has_head ? flops.logits / ranks : 0);
    const double seconds = total / kPlanFlopsPerSecond;
    times.push_back({.forward = seconds / 3, .backward = seconds * 2 / 3});  // forward, and twice that backwards
  }
  return times;
}

absl::Status AddBubble(const v1::TrainingSpec& resolved, const arch::ModelArch& model, Plan& plan) {
  const v1::ParallelismSpec& sizes = resolved.parallelism();
  if (plan.mesh.pp == 1) return absl::OkStatus();
  const int64_t count = plan.micro_batches_per_step;
  plan.ideal_bubble = static_cast<double>(plan.mesh.pp - 1) / static_cast<double>(plan.partition.vpp * count);
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelineSchedule schedule,
                           ScheduleOf(sizes, SimulatedMicroBatches(sizes, count)));
  const auto sent = std::find_if(plan.traffic.begin(), plan.traffic.end(), [](const arch::Traffic& traffic) {
    return traffic.group == topology::GroupKind::kPp;
  });
  topology::SimulationOptions options{.stages = StageTimes(resolved, model, plan.partition)};
  if (sent != plan.traffic.end()) {
    const double message = sent->bytes / static_cast<double>(sent->operations);
    options.message_time = message / (sent->node_bytes > 0 ? kPlanNetworkBandwidth : kPlanNodeBandwidth);
  }
  SLIPWAY_ASSIGN_OR_RETURN(const topology::SimulationResult result, Simulate(schedule, options));
  plan.simulated_bubble = result.bubble_fraction;
  return absl::OkStatus();
}

absl::Status AddCosts(const v1::TrainingSpec& resolved, const arch::ModelArch& model, const topology::Mesh& mesh,
                      Plan& plan) {
  SLIPWAY_ASSIGN_OR_RETURN(const arch::MemoryOptions memory, MemoryOptionsOf(resolved, model));
  for (int rank = 0; rank < plan.mesh.pp; ++rank) {
    SLIPWAY_ASSIGN_OR_RETURN(const arch::MemoryEstimate estimate, arch::EstimateMemory(model, memory, rank));
    plan.memory_by_stage.push_back(estimate);
    if (rank == 0 || estimate.Total() > plan.memory.Total()) plan.memory = estimate;
  }
  const arch::TrafficOptions traffic{.gpus_per_node = plan.gpus_per_node,
                                     .context_comm = resolved.parallelism().cp_comm_type()};
  SLIPWAY_ASSIGN_OR_RETURN(plan.traffic, arch::EstimateTraffic(model, memory, mesh, traffic));
  const v1::CheckpointSpec& checkpoint = resolved.checkpoint();
  plan.checkpoint_bytes = plan.parameters * kCheckpointBytesPerParameter;
  const int64_t all = checkpoint.save_interval() > 0 ? plan.steps / checkpoint.save_interval() + 1 : 1;
  const int64_t kept = checkpoint.keep_last() > 0 ? std::min<int64_t>(all, int64_t{checkpoint.keep_last()} + 1) : all;
  plan.checkpoints_kept_bytes = kept * plan.checkpoint_bytes;
  return absl::OkStatus();
}

std::string Percent(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

}  // namespace

absl::StatusOr<arch::MemoryOptions> MemoryOptionsOf(const v1::TrainingSpec& resolved, const arch::ModelArch& model) {
  const v1::ParallelismSpec& sizes = resolved.parallelism();
  arch::MemoryOptions options{
      .mesh = MeshSizesOf(sizes),
      .bytes = resolved.precision().name() == "fp32" ? arch::StateBytes::Fp32() : arch::StateBytes::Bf16Mixed(),
      .seq_length = resolved.training().seq_length(),
      .micro_batch_size = resolved.training().micro_batch_size(),
      .num_microbatches = MicroBatchesPerStep(resolved),
      .microbatch_group_size_per_vp_stage = sizes.microbatch_group_size_per_vp_stage(),
      .make_vocab_size_divisible_by = resolved.model().make_vocab_size_divisible_by(),
      .sequence_parallel = sizes.sequence_parallel(),
      .sharding = *arch::ShardingFromName(sizes.data_parallel_sharding_strategy()),
      .fused_attention = model.attention_dropout == 0,
      .recompute = resolved.training().recompute_granularity() == "full" ? arch::Recompute::kFull
                                                                         : arch::Recompute::kNone};
  SLIPWAY_ASSIGN_OR_RETURN(options.partition, PartitionOf(sizes, model.num_layers));
  return options;
}

absl::StatusOr<Plan> MakePlan(const v1::TrainingSpec& resolved, const arch::ModelArch& model,
                              const PlanOptions& options) {
  const v1::ParallelismSpec& sizes = resolved.parallelism();
  const v1::TrainSpec& training = resolved.training();
  Plan plan;
  SLIPWAY_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(sizes));
  SLIPWAY_ASSIGN_OR_RETURN(plan.partition, PartitionOf(sizes, model.num_layers));
  plan.mesh = mesh.sizes();
  plan.edp = mesh.edp();
  plan.order = mesh.order();
  plan.world_size = mesh.world();
  plan.gpus_per_node = std::max(options.gpus_per_node, 1);
  plan.nodes = (plan.world_size + plan.gpus_per_node - 1) / plan.gpus_per_node;
  for (int rank = 0; rank < std::min<int64_t>(plan.world_size, kMaxPlanRanks); ++rank) {
    plan.ranks.push_back(mesh.CoordinatesOf(rank));
  }
  plan.groups = PlanGroups(mesh, plan.gpus_per_node);
  plan.micro_batches_per_step = MicroBatchesPerStep(resolved);
  plan.tokens_per_step = training.global_batch_size() * training.seq_length();
  plan.tokens_of_rank = training.micro_batch_size() * training.seq_length() / plan.mesh.cp;
  plan.tokens_between_blocks = plan.tokens_of_rank / (sizes.sequence_parallel() ? plan.mesh.tp : 1);
  if (plan.mesh.cp > 1) plan.cp_comm_type = sizes.cp_comm_type();
  plan.steps = training.train_iters();
  plan.samples = plan.steps * training.global_batch_size();
  plan.parameters = arch::ParameterCount(model);
  const int64_t divisor = resolved.model().make_vocab_size_divisible_by();
  plan.flops_per_step = arch::FlopsOfBatch(model, training.global_batch_size(), training.seq_length(),
                                           arch::PaddedVocabSize(model.vocab_size, divisor, plan.mesh.tp))
                            .Total();
  SLIPWAY_RETURN_IF_ERROR(AddCosts(resolved, model, mesh, plan));
  SLIPWAY_RETURN_IF_ERROR(AddBubble(resolved, model, plan));
  return plan;
}

std::string PlanText(const Plan& plan) {
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n");
  };
  line("layout", StrCat(topology::MeshText(plan.mesh), ", order ", plan.order));
  for (size_t rank = 0; rank < plan.ranks.size() && plan.world_size > 1; ++rank) {
    line("", RankText(static_cast<int>(rank), plan.ranks[rank], plan.mesh));
  }
  if (plan.world_size > static_cast<int64_t>(plan.ranks.size())) {
    line("", StrCat("… and ", plan.world_size - static_cast<int64_t>(plan.ranks.size()), " more"));
  }
  line("nodes", StrCat(plan.nodes, " with ", plan.gpus_per_node, " ranks each"));
  line("layers by stage", plan.partition.Text());
  const bool small = plan.parameters < 1'000'000;
  line("parameters",
       StrCat(plan.parameters, small ? "" : StrCat(" (", Count(static_cast<double>(plan.parameters)), ")")));
  line("steps", StrCat(plan.steps, " (", plan.samples, " samples)"));
  line("one step",
       StrCat(plan.micro_batches_per_step, plan.micro_batches_per_step == 1 ? " micro-batch" : " micro-batches",
              " on each data-parallel rank, at most ", plan.tokens_per_step, " tokens, ",
              absl::StrFormat("%.3g", plan.flops_per_step / 1e12), " TFLOP"));
  line("tokens of a rank",
       StrCat(plan.tokens_of_rank, " of a micro-batch",
              plan.cp_comm_type.empty() ? "" : StrCat(", two chunks of each row, attention by ", plan.cp_comm_type),
              plan.tokens_between_blocks == plan.tokens_of_rank
                  ? ""
                  : StrCat(", ", plan.tokens_between_blocks, " between blocks (sequence parallel)")));
  if (plan.mesh.pp > 1) {
    line("pipeline bubble", StrCat(Percent(plan.ideal_bubble), " with stages alike and free messages, ",
                                   Percent(plan.simulated_bubble), " simulated"));
  }
  const arch::MemoryEstimate& memory = plan.memory;
  line("memory of a rank", StrCat("about ", Bytes(memory.Total()), " (weights ", Bytes(memory.weights), ", gradients ",
                                  Bytes(memory.gradients), ", optimizer ", Bytes(memory.optimizer), ", activations ",
                                  Bytes(memory.activations), ", logits ", Bytes(memory.logits), ")"));
  line("checkpoints", StrCat("about ", FormatBytes(plan.checkpoint_bytes), " each, ",
                             FormatBytes(plan.checkpoints_kept_bytes), " at most"));
  return text;
}

}  // namespace slipway::engine::spec
