// The layout that a spec asks for, in the terms of engine/topology: the one place where the parallelism section is read.
// Thread-safe: pure functions. REQUIRES throughout: a resolved spec.
#ifndef SLIPWAY_ENGINE_SPEC_LAYOUT_H_
#define SLIPWAY_ENGINE_SPEC_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/topology/mesh.h"
#include "engine/topology/pipeline_partition.h"
#include "engine/topology/pipeline_schedule.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Ranks that share each expert's matrices.
int ExpertTensorParallelSize(const v1::ParallelismSpec& parallelism);

topology::MeshSizes MeshSizesOf(const v1::ParallelismSpec& parallelism);

// Errors as topology::Mesh::Create.
absl::StatusOr<topology::Mesh> MeshOf(const v1::ParallelismSpec& parallelism);

// Which layers each stage holds. Errors as topology::PartitionLayers and PartitionByLayout.
absl::StatusOr<topology::PipelinePartition> PartitionOf(const v1::ParallelismSpec& parallelism, int64_t num_layers);

// Of a training step, with `micro_batches` on each data-parallel rank. Errors as the schedules of engine/topology.
absl::StatusOr<topology::PipelineSchedule> ScheduleOf(const v1::ParallelismSpec& parallelism, int64_t micro_batches);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_LAYOUT_H_
