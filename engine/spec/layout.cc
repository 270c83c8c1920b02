#include "engine/spec/layout.h"

namespace slipway::engine::spec {

int ExpertTensorParallelSize(const v1::ParallelismSpec& parallelism) {
  // Not filled in when a spec is resolved: it follows the tensor-parallel size on every layout that a job resumes on.
  return parallelism.has_expert_tensor_parallel_size() ? parallelism.expert_tensor_parallel_size()
                                                       : parallelism.tensor_model_parallel_size();
}

topology::MeshSizes MeshSizesOf(const v1::ParallelismSpec& parallelism) {
  return {.tp = parallelism.tensor_model_parallel_size(),
          .cp = parallelism.context_parallel_size(),
          .dp = parallelism.data_parallel_size(),
          .pp = parallelism.pipeline_model_parallel_size(),
          .ep = parallelism.expert_model_parallel_size(),
          .etp = ExpertTensorParallelSize(parallelism)};
}

absl::StatusOr<topology::Mesh> MeshOf(const v1::ParallelismSpec& parallelism) {
  return topology::Mesh::Create(MeshSizesOf(parallelism), parallelism.order());
}

absl::StatusOr<topology::PipelinePartition> PartitionOf(const v1::ParallelismSpec& parallelism, int64_t num_layers) {
  const int layers = static_cast<int>(num_layers);
  const int pp = parallelism.pipeline_model_parallel_size();
  if (parallelism.has_pipeline_model_parallel_layout()) {
    return topology::PartitionByLayout(layers, pp, parallelism.pipeline_model_parallel_layout());
  }
  return topology::PartitionLayers(layers, pp, parallelism.virtual_pipeline_model_parallel_size());
}

absl::StatusOr<topology::PipelineSchedule> ScheduleOf(const v1::ParallelismSpec& parallelism, int64_t micro_batches) {
  const int pp = parallelism.pipeline_model_parallel_size();
  const int vpp = parallelism.virtual_pipeline_model_parallel_size();
  const int count = static_cast<int>(micro_batches);
  if (vpp == 1) return topology::OneForwardOneBackward(pp, count);
  return topology::InterleavedOneForwardOneBackward(pp, vpp, count, parallelism.microbatch_group_size_per_vp_stage());
}

}  // namespace slipway::engine::spec
