// Layers whose values are computed again in the backward pass: what a factory puts around the parts of a layer that
// nn::RecomputeOptions names. A part that it does not name comes back as it is.
//
// Norms and activations are cheap to make and kept by the linear layer that reads them: their memory is freed when that
// layer has read them (so it must be told too: Reader). Attention and experts run as a whole once more.
// Thread-safety: one thread.
#ifndef SLIPWAY_ENGINE_PARALLEL_RECOMPUTED_LAYERS_H_
#define SLIPWAY_ENGINE_PARALLEL_RECOMPUTED_LAYERS_H_

#include <functional>
#include <memory>

#include "engine/nn/layer_factory.h"
#include "engine/nn/param_handle.h"
#include "engine/nn/recompute.h"

namespace slipway::engine::parallel {

class RecomputedLayers {
 public:
  explicit RecomputedLayers(const nn::RecomputeOptions& options)
      : options_(options), offer_(std::make_shared<Offer>()) {}

  nn::LayerPtr Norm(nn::LayerPtr norm) const;
  // `weight` and `epsilon` are the norm's.
  std::unique_ptr<nn::ResidualNorm> JoinNorm(std::unique_ptr<nn::ResidualNorm> join, nn::ParamPtr weight,
                                             double epsilon) const;
  nn::LayerPtr Activation(nn::LayerPtr activation) const;
  // A linear layer that may read one of those.
  nn::LayerPtr Reader(nn::LayerPtr reader) const;
  std::unique_ptr<nn::AttentionCore> Attention(std::unique_ptr<nn::AttentionCore> attention) const;
  nn::LayerPtr Experts(nn::LayerPtr experts) const;

  // The newest output that its reader may discard.
  struct Offer {
    at::Tensor output;
    std::function<at::Tensor()> remake;
  };

 private:
  nn::RecomputeOptions options_;
  std::shared_ptr<Offer> offer_;  // of all layers of one factory: a reader comes right after its maker
};

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_RECOMPUTED_LAYERS_H_
