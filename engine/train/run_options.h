// What a resolved TrainingSpec means to the parts below, which take small plain options. Pure functions; thread-safe.
// REQUIRES: a resolved and valid spec.
#ifndef SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_
#define SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_

#include "engine/corpus/sample_source.h"
#include "engine/optim/adamw.h"
#include "engine/optim/lr_schedule.h"
#include "engine/parallel/flat_store.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::train {

at::ScalarType ComputeType(const v1::PrecisionSpec& precision);
parallel::FlatStoreOptions StoreOptions(const v1::TrainingSpec& spec, at::Device device);
optim::AdamWOptions OptimizerOptions(const v1::OptimizerSpec& optimizer);
optim::LrScheduleOptions ScheduleOptions(const v1::TrainingSpec& spec);
corpus::BatchSlicing Slicing(const v1::TrainingSpec& spec, int dp_rank);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_
