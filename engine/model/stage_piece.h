// A model is a list of stage pieces: embedding, layer k, head. A pipeline stage owns a contiguous run of them, a virtual
// stage another; one rank alone owns all. Pieces pass [T, hidden] along.
#ifndef SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_
#define SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/arch/model_arch.h"
#include "engine/arch/param_spec.h"
#include "engine/nn/layer_factory.h"

namespace slipway::engine::model {

// What one micro-batch brings to a stage. Every stage makes its own from the sampler; nothing here travels point-to-point.
struct MicroBatch {
  at::Tensor tokens;   // int64 [T]
  at::Tensor labels;   // int64 [T], already shifted
  at::Tensor weights;  // fp32 [T]; 0: no loss
  nn::SequenceLayout layout;
};

class StagePiece {
 public:
  virtual ~StagePiece() = default;
  virtual const arch::Piece& piece() const = 0;
  // Embedding ignores x (undefined) and reads batch.tokens; the head returns the fp32 loss sum.
  virtual at::Tensor Forward(const at::Tensor& x, const MicroBatch& batch, const nn::ForwardContext& context) = 0;
};
using StagePieces = std::vector<std::unique_ptr<StagePiece>>;

// Builds the pieces named, in order.
StagePieces BuildDecoder(const arch::ModelArch& arch, const std::vector<arch::Piece>& pieces, nn::LayerFactory& factory);

}  // namespace slipway::engine::model

#endif  // SLIPWAY_ENGINE_MODEL_STAGE_PIECE_H_
