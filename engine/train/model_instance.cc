#include "engine/train/model_instance.h"

#include <utility>

#include "common/status_macros.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/topology/pipeline_partition.h"
#include "engine/train/guarded_call.h"

namespace slipway::engine::train {
absl::StatusOr<ModelInstance> ModelInstance::Create(const arch::ModelArch& arch, const topology::Mesh& mesh, int rank,
                                                    const comm::ParallelGroups& groups,
                                                    const parallel::FlatStoreOptions& options,
                                                    const parallel::LayerFactoryOptions& layers) {
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition,
                           topology::PartitionLayers(static_cast<int>(arch.num_layers), mesh.sizes().pp));
  const std::vector<arch::Piece> pieces = parallel::PiecesOfStage(partition.stages[mesh.CoordinatesOf(rank).pp]);
  return Guarded("building the model", [&]() -> absl::StatusOr<ModelInstance> {
    ModelInstance model;
    model.arch_ = arch;
    SLIPWAY_ASSIGN_OR_RETURN(
        model.store_, parallel::FlatStore::Create(arch::BuildParamTable(arch), pieces, mesh, rank, groups, options));
    parallel::ParallelLayerFactory factory(
        [store = model.store_.get()](const std::string& group) { return store->Handle(group); }, groups, layers);
    model.pieces_ = model::BuildDecoder(arch, pieces, factory, options.device);
    return model;
  });
}

absl::StatusOr<ModelInstance> ModelInstance::CreateSingle(const arch::ModelArch& arch, at::ScalarType compute_dtype,
                                                          at::Device device) {
  SLIPWAY_ASSIGN_OR_RETURN(const topology::Mesh mesh, topology::Mesh::Create({}));
  const comm::ParallelGroups groups = comm::MakeSoloGroups();
  parallel::FlatStoreOptions options;
  options.compute_dtype = compute_dtype;
  options.device = device;
  return Create(arch, mesh, 0, groups, options, {.vocab_size = arch.vocab_size});
}

}  // namespace slipway::engine::train
