#include "engine/train/run_options.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/spec/resolve.h"

namespace slipway::engine::train {
namespace {

// Ranks that a rank's tokens are cut over between the blocks of a layer.
int TokenShards(const v1::ParallelismSpec& parallelism) {
  return parallelism.sequence_parallel() ? parallelism.tensor_model_parallel_size() : 1;
}

}  // namespace

at::ScalarType ComputeType(const v1::PrecisionSpec& precision) {
  return precision.name() == "fp32" ? at::kFloat : at::kBFloat16;
}

parallel::FlatStoreOptions StoreOptions(const v1::TrainingSpec& spec, at::Device device) {
  parallel::FlatStoreOptions options;
  options.compute_dtype = ComputeType(spec.precision());
  options.device = device;
  const v1::ParallelismSpec& parallelism = spec.parallelism();
  options.sharding = *arch::ShardingFromName(parallelism.data_parallel_sharding_strategy());
  options.overlap_grad_reduce = parallelism.overlap_grad_reduce();
  options.overlap_param_gather = parallelism.overlap_param_gather();
  options.grad_reduce_in_fp32 = parallelism.grad_reduce_in_fp32();
  options.sequence_parallel = parallelism.sequence_parallel();
  options.make_vocab_size_divisible_by = spec.model().make_vocab_size_divisible_by();
  return options;
}

nn::RecomputeOptions RecomputeOptionsOf(const v1::TrainSpec& training) {
  using Layers = nn::RecomputeOptions::Layers;
  nn::RecomputeOptions options;
  if (training.recompute_granularity() == "full") {
    options.layers = training.recompute_method() == "uniform" ? Layers::kUniform : Layers::kBlock;
    options.num_layers = std::max(training.recompute_num_layers(), 1);
  }
  if (training.recompute_granularity() != "selective") return options;
  const auto named = [&](std::string_view module) {
    const auto& modules = training.recompute_modules();
    return std::find(modules.begin(), modules.end(), module) != modules.end();
  };
  options.attention = named("core_attn") || training.recompute_modules().empty();
  options.norms = named("layernorm");
  options.activation = named("mlp_act");
  options.experts = named("moe");
  return options;
}

optim::AdamWOptions OptimizerOptions(const v1::TrainingSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  return {.beta1 = optimizer.adam_beta1(),
          .beta2 = optimizer.adam_beta2(),
          .epsilon = optimizer.adam_eps(),
          .weight_decay = optimizer.weight_decay(),
          .max_grad_norm = optimizer.clip_grad(),
          .count_zeros = spec.logger().log_num_zeros_in_grad(),
          .params_norm = spec.logger().log_params_norm()};
}

optim::LrScheduleOptions ScheduleOptions(const v1::TrainingSpec& spec) {
  const v1::SchedulerSpec& scheduler = spec.scheduler();
  optim::LrScheduleOptions options;
  options.style = *optim::LrDecayStyleFromName(scheduler.lr_decay_style());
  options.max_lr = spec.optimizer().lr();
  options.min_lr = spec.optimizer().min_lr();
  options.init_lr = scheduler.lr_warmup_init();
  options.decay_iters = scheduler.lr_decay_iters();
  options.warmup_iters = scheduler.has_lr_warmup_fraction()
                             ? std::llround(scheduler.lr_warmup_fraction() * static_cast<double>(options.decay_iters))
                             : scheduler.lr_warmup_iters();
  options.wsd_decay_iters = scheduler.lr_wsd_decay_iters();
  options.wsd_style = *optim::WsdDecayStyleFromName(scheduler.lr_wsd_decay_style());
  return options;
}

parallel::LayerFactoryOptions LayerOptions(const v1::TrainingSpec& spec, const arch::ModelArch& arch) {
  const v1::ParallelismSpec& parallelism = spec.parallelism();
  return {.vocab_size = arch.vocab_size,
          .sequence_parallel = parallelism.sequence_parallel(),
          .tp_comm_overlap = parallelism.tp_comm_overlap(),
          .cp_comm = nn::ContextCommOf(parallelism.cp_comm_type()),
          .recompute = RecomputeOptionsOf(spec.training())};
}

parallel::PipelineOptions RunnerOptions(const v1::TrainingSpec& spec, const arch::ModelArch& arch, at::Device device) {
  return {.hidden_size = arch.hidden_size,
          .activation_dtype = ComputeType(spec.precision()),
          .device = device,
          .token_shards = TokenShards(spec.parallelism()),
          .recompute = RecomputeOptionsOf(spec.training())};
}

corpus::BatchSlicing Slicing(const v1::TrainingSpec& spec, const topology::Coordinates& at) {
  return {.global_batch_size = spec.training().global_batch_size(),
          .micro_batch_size = spec.training().micro_batch_size(),
          .dp_rank = at.dp,
          .dp_size = spec.parallelism().data_parallel_size()};
}

BatchShape ShapeOfBatches(const v1::TrainingSpec& spec, const topology::Coordinates& at, at::Device device) {
  return {.rows = spec.training().micro_batch_size(),
          .seq_length = spec.training().seq_length(),
          .context = {.rank = at.cp, .size = spec.parallelism().context_parallel_size()},
          .token_multiple = TokenShards(spec.parallelism()),
          .device = device};
}

}  // namespace slipway::engine::train
