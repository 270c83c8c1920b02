// Stage pieces that compute layers again in the backward pass instead of keeping their activations.
#ifndef SLIPWAY_ENGINE_MODEL_RECOMPUTE_H_
#define SLIPWAY_ENGINE_MODEL_RECOMPUTE_H_

#include "engine/model/stage_piece.h"
#include "engine/nn/recompute.h"

namespace slipway::engine::model {

// Pieces [first, end) of a chunk that are computed, and perhaps computed again, together.
struct PieceRun {
  size_t first = 0;
  size_t end = 0;
  bool recomputed = false;
};
// As in Megatron-LM:
//   kUniform  runs of num_layers layers are computed again; of each run only its input is kept
//   kBlock    the first num_layers layers are; of each of them only its input is kept
// Embedding and head never are.
std::vector<PieceRun> RunsOf(const std::vector<arch::Piece>& pieces, const nn::RecomputeOptions& options);

// ForwardPieces by these runs. The pieces must live until the backward.
at::Tensor ForwardRecomputing(const StagePieces& pieces, at::Tensor x, const MicroBatch& batch,
                              const nn::ForwardContext& context, const nn::RecomputeOptions& options);

}  // namespace slipway::engine::model

#endif  // SLIPWAY_ENGINE_MODEL_RECOMPUTE_H_
