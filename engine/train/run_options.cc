#include "engine/train/run_options.h"

#include <cmath>

namespace slipway::engine::train {

at::ScalarType ComputeType(const v1::PrecisionSpec& precision) {
  return precision.name() == "fp32" ? at::kFloat : at::kBFloat16;
}

parallel::FlatStoreOptions StoreOptions(const v1::TrainingSpec& spec, at::Device device) {
  parallel::FlatStoreOptions options;
  options.compute_dtype = ComputeType(spec.precision());
  options.device = device;
  options.shard_optimizer = spec.parallelism().use_distributed_optimizer();
  options.make_vocab_size_divisible_by = spec.model().make_vocab_size_divisible_by();
  return options;
}

optim::AdamWOptions OptimizerOptions(const v1::OptimizerSpec& optimizer) {
  return {.beta1 = optimizer.adam_beta1(),
          .beta2 = optimizer.adam_beta2(),
          .epsilon = optimizer.adam_eps(),
          .weight_decay = optimizer.weight_decay(),
          .max_grad_norm = optimizer.clip_grad()};
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

corpus::BatchSlicing Slicing(const v1::TrainingSpec& spec, int dp_rank) {
  return {.global_batch_size = spec.training().global_batch_size(),
          .micro_batch_size = spec.training().micro_batch_size(),
          .dp_rank = dp_rank,
          .dp_size = spec.parallelism().data_parallel_size()};
}

}  // namespace slipway::engine::train
