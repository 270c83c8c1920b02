// A spec with every default filled in: what is stored with the job and in its checkpoints, and what a trainer reads.
// Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_RESOLVE_H_
#define SLIPWAY_ENGINE_SPEC_RESOLVE_H_

#include <cstdint>
#include <string>

#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Fills the defaults of the (meta) options and then what follows from other fields:
//  - model.*: with `preset` all its values, with explicit fields the family's (kv_channels, num_query_groups,
//  norm_epsilon,
//    rotary_base, …); nothing with hf_path, whose config.json says it
//  - scheduler.lr_decay_iters = training.train_iters, and lr_warmup_iters = 0 when no form of warm-up is given
//  - tokenizer.path = model.hf_path
//  - parallelism.virtual_pipeline_model_parallel_size = what the layout string makes, else 1
//  - dataset.requested_samples = train_iters × global_batch_size, for the `megatron` order only
// Never fails and reads no file; an invalid spec is filled as far as possible. Resolve(Resolve(s)) == Resolve(s).
// Afterwards every section is present and every scalar with a default is set. What stays unset by design: model.*
// beside hf_path, cache_path, validation_path, checkpoint.path, export_dtype, eval_iters, lr_warmup_fraction, and the
// like.
v1::TrainingSpec Resolve(const v1::TrainingSpec& spec);

// A stable hash (32 hex digits) of what a resolved spec computes: without name, project and labels. Equal specs have
// equal hashes in every process of this version of the format.
std::string SpecHash(const v1::TrainingSpec& resolved);

// data × tensor × pipeline × context parallel sizes. REQUIRES: a resolved and valid spec.
int64_t WorldSize(const v1::TrainingSpec& resolved);
// Micro-batches that each data-parallel rank runs in a step. REQUIRES: a resolved and valid spec.
int64_t MicroBatchesPerStep(const v1::TrainingSpec& resolved);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_RESOLVE_H_
