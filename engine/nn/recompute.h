// Trading computation for memory: what a forward pass would keep for its backward is computed again there.
//
// The random numbers of this project are counter-based and its kernels deterministic, so what is computed again has the
// same bits, and so have losses and gradients. In a pass without gradients nothing here does anything.
// Thread-safety: one thread, as the layers. Errors pass through.
#ifndef SLIPWAY_ENGINE_NN_RECOMPUTE_H_
#define SLIPWAY_ENGINE_NN_RECOMPUTE_H_

#include <ATen/core/Tensor.h>

#include <functional>

namespace slipway::engine::nn {

// What a job computes again (training.recompute_*).
struct RecomputeOptions {
  enum class Layers { kNone, kUniform, kBlock };  // whole layers: see model::ForwardRecomputing
  Layers layers = Layers::kNone;
  int64_t num_layers = 1;
  // Parts of every layer.
  bool attention = false;   // from q | k | v to the heads' outputs
  bool norms = false;       // the outputs of the norms before attention and feed-forward
  bool activation = false;  // the feed-forward's inner activation
  bool experts = false;     // router, dispatch and experts, whose messages are sent again
};

// forward(x), of which x alone is kept: the backward runs it once more, with a graph. It must not change x, and must
// own what it refers to.
using Recomputed = std::function<at::Tensor(const at::Tensor& x)>;
at::Tensor Recompute(const at::Tensor& x, Recomputed forward);

// For an output that its reader keeps and its maker does not need: its memory goes after the reader has read it, and is
// filled again by `remake` just before the reader's backward. `reader_output` is what the reader made of it.
void DiscardUntilBackward(const at::Tensor& output, const at::Tensor& reader_output,
                          std::function<at::Tensor()> remake);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_RECOMPUTE_H_
