// The model of one rank, ready to compute: store, layers, and what they were made from.
#ifndef SLIPWAY_ENGINE_TRAIN_MODEL_INSTANCE_H_
#define SLIPWAY_ENGINE_TRAIN_MODEL_INSTANCE_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/comm/parallel_groups.h"
#include "engine/model/stage_piece.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "engine/topology/mesh.h"
#include "engine/topology/pipeline_partition.h"

namespace slipway::engine::train {

// Movable; owns everything that its pieces point to. Not thread-safe.
class ModelInstance {
 public:
  // This rank's share of the model, all weights zero. `mesh`, `partition` and `groups` need not outlive it.
  static absl::StatusOr<ModelInstance> Create(const arch::ModelArch& arch, const topology::Mesh& mesh,
                                              const topology::PipelinePartition& partition, int rank,
                                              const comm::ParallelGroups& groups,
                                              const parallel::FlatStoreOptions& options,
                                              const parallel::LayerFactoryOptions& layers);
  // The whole model on one rank, for computing alone: weights, and nothing that training needs.
  static absl::StatusOr<ModelInstance> CreateSingle(const arch::ModelArch& arch, at::ScalarType compute_dtype,
                                                    at::Device device);

  const arch::ModelArch& arch() const { return arch_; }
  parallel::FlatStore& store() { return *store_; }
  // REQUIRES: one chunk, as CreateSingle makes.
  const model::StagePieces& pieces() const { return chunks_.front(); }
  // The chunks of this pipeline rank, for a runner that owns them; they still need the store.
  std::vector<model::StagePieces> TakeChunks() { return std::move(chunks_); }

 private:
  ModelInstance() = default;

  arch::ModelArch arch_;
  std::unique_ptr<parallel::FlatStore> store_;
  std::vector<model::StagePieces> chunks_;
};

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_MODEL_INSTANCE_H_
