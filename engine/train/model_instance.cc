#include "engine/train/model_instance.h"

#include <utility>

#include "common/status_macros.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/train/guarded_call.h"

namespace slipway::engine::train {
absl::StatusOr<ModelInstance> ModelInstance::Create(const arch::ModelArch& arch, const topology::Mesh& mesh,
                                                    const topology::PipelinePartition& partition, int rank,
                                                    const comm::ParallelGroups& groups,
                                                    const parallel::FlatStoreOptions& options,
                                                    const parallel::LayerFactoryOptions& layers) {
  std::vector<std::vector<arch::Piece>> chunks;
  std::vector<arch::Piece> pieces;
  for (const topology::PipelineStage& stage : partition.OfRank(mesh.CoordinatesOf(rank).pp)) {
    chunks.push_back(parallel::PiecesOfStage(stage));
    pieces.insert(pieces.end(), chunks.back().begin(), chunks.back().end());
  }
  return Guarded("building the model", [&]() -> absl::StatusOr<ModelInstance> {
    ModelInstance model;
    model.arch_ = arch;
    SLIPWAY_ASSIGN_OR_RETURN(
        model.store_, parallel::FlatStore::Create(arch::BuildParamTable(arch), pieces, mesh, rank, groups, options));
    parallel::ParallelLayerFactory factory(
        [store = model.store_.get()](const std::string& group) { return store->Handle(group); }, groups, layers);
    for (const std::vector<arch::Piece>& chunk : chunks) {
      model.chunks_.push_back(model::BuildDecoder(arch, chunk, factory, options.device));
    }
    return model;
  });
}

absl::StatusOr<ModelInstance> ModelInstance::CreateSingle(const arch::ModelArch& arch, at::ScalarType compute_dtype,
                                                          at::Device device) {
  SLIPWAY_ASSIGN_OR_RETURN(const topology::Mesh mesh, topology::Mesh::Create({}));
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition,
                           topology::PartitionLayers(static_cast<int>(arch.num_layers), 1));
  const comm::ParallelGroups groups = comm::MakeSoloGroups();
  parallel::FlatStoreOptions options;
  options.compute_dtype = compute_dtype;
  options.device = device;
  options.weights_only = true;
  return Create(arch, mesh, partition, 0, groups, options, {.vocab_size = arch.vocab_size});
}

}  // namespace slipway::engine::train
