// What a resolved TrainingSpec means to the parts below, which take small plain options. Pure functions; thread-safe.
// REQUIRES: a resolved and valid spec.
#ifndef SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_
#define SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_

#include "engine/arch/model_arch.h"
#include "engine/corpus/sample_source.h"
#include "engine/nn/recompute.h"
#include "engine/optim/adamw.h"
#include "engine/optim/lr_schedule.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/topology/mesh.h"
#include "engine/train/data_feed.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::train {

at::ScalarType ComputeType(const v1::PrecisionSpec& precision);
parallel::FlatStoreOptions StoreOptions(const v1::TrainingSpec& spec, at::Device device);
nn::RecomputeOptions RecomputeOptionsOf(const v1::TrainSpec& training);
optim::AdamWOptions OptimizerOptions(const v1::TrainingSpec& spec);
optim::LrScheduleOptions ScheduleOptions(const v1::TrainingSpec& spec);
parallel::LayerFactoryOptions LayerOptions(const v1::TrainingSpec& spec, const arch::ModelArch& arch);
parallel::PipelineOptions RunnerOptions(const v1::TrainingSpec& spec, const arch::ModelArch& arch, at::Device device);
corpus::BatchSlicing Slicing(const v1::TrainingSpec& spec, const topology::Coordinates& at);
BatchShape ShapeOfBatches(const v1::TrainingSpec& spec, const topology::Coordinates& at, at::Device device);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_RUN_OPTIONS_H_
