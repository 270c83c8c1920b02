#include "engine/model/recompute.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

namespace slipway::engine::model {
namespace {

using Layers = nn::RecomputeOptions::Layers;

}  // namespace

std::vector<PieceRun> RunsOf(const std::vector<arch::Piece>& pieces, const nn::RecomputeOptions& options) {
  const auto is_layer = [&](size_t i) { return pieces[i].kind == arch::Piece::Kind::kLayer; };
  const size_t length = options.layers == Layers::kUniform ? static_cast<size_t>(options.num_layers) : 1;
  std::vector<PieceRun> runs;
  int64_t layers = 0;
  for (size_t first = 0; first < pieces.size(); first = runs.back().end) {
    PieceRun run{.first = first, .end = first + 1};
    const bool wanted =
        options.layers == Layers::kUniform || (options.layers == Layers::kBlock && layers < options.num_layers);
    run.recomputed = wanted && is_layer(first);
    while (run.recomputed && run.end < pieces.size() && run.end - first < length && is_layer(run.end)) ++run.end;
    layers += run.recomputed ? static_cast<int64_t>(run.end - first) : 0;
    runs.push_back(run);
  }
  return runs;
}

at::Tensor ForwardRecomputing(const StagePieces& pieces, at::Tensor x, const MicroBatch& batch,
                              const nn::ForwardContext& context, const nn::RecomputeOptions& options) {
  if (options.layers == Layers::kNone || !at::GradMode::is_enabled()) {
    return ForwardPieces(pieces, std::move(x), batch, context);
  }
  // The backward comes when the caller's batch may be gone.
  const auto kept = std::make_shared<const MicroBatch>(batch);
  nn::ForwardContext kept_context = context;
  kept_context.layout = &kept->layout;
  std::vector<arch::Piece> names;
  for (const auto& piece : pieces) names.push_back(piece->piece());
  for (const PieceRun& run : RunsOf(names, options)) {
    if (!run.recomputed) {
      x = pieces[run.first]->Forward(x, batch, context);
      continue;
    }
    x = nn::Recompute(x, [&pieces, kept, kept_context, run](const at::Tensor& input) {
      at::Tensor y = input;
      for (size_t i = run.first; i < run.end; ++i) y = pieces[i]->Forward(y, *kept, kept_context);
      return y;
    });
  }
  return x;
}

}  // namespace slipway::engine::model
