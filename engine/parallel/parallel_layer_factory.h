// The LayerFactory of a rank: layers over the rank's parameter handles and tensor-parallel group, with local shapes at
// once.
//
//   ParallelLayerFactory factory([&](const std::string& group) { return store->Handle(group); }, groups,
//                                {.vocab_size = arch.vocab_size});
//   model::StagePieces pieces = model::BuildDecoder(arch, piece_list, factory);
//
// Layers keep the handles and groups alive; the factory itself may go. Thread-safety: one thread.
// Errors: throws c10::Error naming the fuse group that the rank does not hold, or heads that do not divide.
#ifndef SLIPWAY_ENGINE_PARALLEL_PARALLEL_LAYER_FACTORY_H_
#define SLIPWAY_ENGINE_PARALLEL_PARALLEL_LAYER_FACTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/parallel_groups.h"
#include "engine/nn/context_attention.h"
#include "engine/nn/layer_factory.h"
#include "engine/nn/parallel_linear.h"
#include "engine/nn/param_handle.h"
#include "engine/parallel/recomputed_layers.h"

namespace slipway::engine::parallel {

struct LayerFactoryOptions {
  int64_t vocab_size = 0;  // without padding
  // Bound on the logits that exist at one time; a batch that fits needs no second computation of them.
  int64_t logits_chunk_elements = int64_t{1} << 25;
  // Between the blocks a rank has its own T / tp tokens; a generation's few tokens are never cut. The store must have
  // been told the same.
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;  // see nn::TensorParallel::overlap
  nn::ContextComm cp_comm = nn::ContextComm::kRing;
  nn::RecomputeOptions recompute;  // of the parts of layers
};

class ParallelLayerFactory final : public nn::LayerFactory {
 public:
  // The handle of a fuse group, null when the rank has none.
  using HandleSource = std::function<nn::ParamPtr(const std::string& fuse_group)>;

  ParallelLayerFactory(HandleSource handles, const comm::ParallelGroups& groups, const LayerFactoryOptions& options)
      : handles_(std::move(handles)),
        tp_{.group = groups.tp,
            .sequence_parallel = options.sequence_parallel && groups.tp->size() > 1,
            .overlap = options.tp_comm_overlap},
        cp_{.group = groups.cp, .comm = options.cp_comm},
        groups_(groups),
        options_(options),
        recomputed_(options.recompute) {}

  std::unique_ptr<nn::EmbeddingLayer> Embedding(const std::string& fuse_group) override;
  nn::LayerPtr ColumnLinear(const std::string& fuse_group, bool bias) override;
  nn::LayerPtr RowLinear(const std::string& fuse_group) override;
  nn::LayerPtr RmsNorm(const std::string& fuse_group, double epsilon) override;
  nn::LayerPtr SwiGlu() override;
  nn::LayerPtr Experts(const std::string& name, const arch::MoeArch& moe, int layer) override;
  std::unique_ptr<nn::AttentionCore> Attention(const nn::AttentionOptions& options) override;
  std::unique_ptr<nn::ResidualJoin> Join(const nn::ResidualOptions& options) override;
  std::unique_ptr<nn::ResidualNorm> JoinNorm(const std::string& fuse_group, double epsilon,
                                             const nn::ResidualOptions& options) override;
  std::unique_ptr<nn::LossHead> Head(const std::string& fuse_group) override;

 private:
  nn::ParamPtr Handle(const std::string& fuse_group) const;

  HandleSource handles_;
  nn::TensorParallel tp_;
  nn::ContextParallel cp_;
  comm::ParallelGroups groups_;
  LayerFactoryOptions options_;
  RecomputedLayers recomputed_;
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_PARALLEL_LAYER_FACTORY_H_
