// A model is a list of stage pieces: embedding, layer k, head. A pipeline stage owns a contiguous run of them, a
// virtual stage another; one rank alone owns all. Pieces pass [T, hidden] along.
#ifndef SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_
#define SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/arch/model_arch.h"
#include "engine/arch/param_spec.h"
#include "engine/nn/layer_factory.h"

namespace slipway::engine::model {

// What one micro-batch brings to a stage. Every stage makes its own from the sampler; nothing here travels
// point-to-point.
struct MicroBatch {
  at::Tensor tokens;   // int64 [T]
  at::Tensor labels;   // int64 [T], already shifted; undefined: logits are wanted, not the loss
  at::Tensor weights;  // fp32 [T]; 0: no loss
  nn::SequenceLayout layout;
};

class StagePiece {
 public:
  virtual ~StagePiece() = default;
  virtual const arch::Piece& piece() const = 0;
  // The embedding ignores x (undefined) and reads batch.tokens; the head returns the fp32 loss sum, or for a batch
  // without labels the fp32 logits of x's tokens. context.layout is the batch's.
  virtual at::Tensor Forward(const at::Tensor& x, const MicroBatch& batch, const nn::ForwardContext& context) = 0;
};
using StagePieces = std::vector<std::unique_ptr<StagePiece>>;

// Builds the pieces named, in order, with inverse frequencies and such on `device`.
StagePieces BuildDecoder(const arch::ModelArch& arch, const std::vector<arch::Piece>& pieces, nn::LayerFactory& factory,
                         at::Device device = at::kCPU);

// Embedding, all layers, head: what one rank alone owns.
std::vector<arch::Piece> AllPieces(const arch::ModelArch& arch);

// Runs pieces one after another. x: the output of the piece before the first (undefined when that is the embedding).
at::Tensor ForwardPieces(const StagePieces& pieces, at::Tensor x, const MicroBatch& batch,
                         const nn::ForwardContext& context);

}  // namespace slipway::engine::model

#endif  // SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_
