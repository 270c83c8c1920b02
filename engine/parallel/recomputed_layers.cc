#include "engine/parallel/recomputed_layers.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "engine/nn/functions.h"

namespace slipway::engine::parallel {
namespace {

using nn::ForwardContext;
using Offer = RecomputedLayers::Offer;
using OfferPtr = std::shared_ptr<Offer>;

// A layer whose output depends on its input alone, not on the context.
class Maker final : public nn::Layer {
 public:
  Maker(nn::LayerPtr inner, OfferPtr offer) : inner_(std::move(inner)), offer_(std::move(offer)) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    at::Tensor y = inner_->Forward(x, context);
    if (at::GradMode::is_enabled()) {
      *offer_ = {y, [inner = inner_, x = x.detach()] { return inner->Forward(x, ForwardContext()); }};
    }
    return y;
  }

 private:
  std::shared_ptr<nn::Layer> inner_;
  OfferPtr offer_;
};

class JoinMaker final : public nn::ResidualNorm {
 public:
  JoinMaker(std::unique_ptr<nn::ResidualNorm> inner, nn::ParamPtr weight, double epsilon, OfferPtr offer)
      : inner_(std::move(inner)), weight_(std::move(weight)), epsilon_(epsilon), offer_(std::move(offer)) {}
  nn::Joined Forward(const at::Tensor& residual, const at::Tensor& y, const ForwardContext& context) override {
    nn::Joined joined = inner_->Forward(residual, y, context);
    if (at::GradMode::is_enabled()) {
      *offer_ = {joined.normed, [sum = joined.sum.detach(), weight = weight_, epsilon = epsilon_] {
                   return nn::RmsNorm(sum, weight, epsilon);
                 }};
    }
    return joined;
  }

 private:
  std::unique_ptr<nn::ResidualNorm> inner_;
  nn::ParamPtr weight_;
  double epsilon_;
  OfferPtr offer_;
};

class ReaderLayer final : public nn::Layer {
 public:
  ReaderLayer(nn::LayerPtr inner, OfferPtr offer) : inner_(std::move(inner)), offer_(std::move(offer)) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    at::Tensor y = inner_->Forward(x, context);
    if (x.is_same(offer_->output)) {
      Offer taken = std::exchange(*offer_, Offer());
      nn::DiscardUntilBackward(x, y, std::move(taken.remake));
    }
    return y;
  }

 private:
  nn::LayerPtr inner_;
  OfferPtr offer_;
};

// A context that outlives the caller's.
class KeptContext {
 public:
  explicit KeptContext(const ForwardContext& context)
      : layout_(std::make_shared<const nn::SequenceLayout>(*context.layout)), context_(context) {
    context_.layout = layout_.get();
  }
  const ForwardContext& get() const { return context_; }

 private:
  std::shared_ptr<const nn::SequenceLayout> layout_;
  ForwardContext context_;
};

class RecomputedAttention final : public nn::AttentionCore {
 public:
  explicit RecomputedAttention(std::unique_ptr<nn::AttentionCore> inner) : inner_(std::move(inner)) {}
  at::Tensor Forward(const at::Tensor& qkv, const ForwardContext& context) override {
    if (!at::GradMode::is_enabled()) return inner_->Forward(qkv, context);
    // Attention turns what it is given in place; what is kept must stay as it is.
    return nn::Recompute(qkv, [inner = inner_, kept = KeptContext(context)](const at::Tensor& x) {
      return inner->Forward(x.clone(), kept.get());
    });
  }

 private:
  std::shared_ptr<nn::AttentionCore> inner_;
};

class RecomputedLayer final : public nn::Layer {
 public:
  explicit RecomputedLayer(nn::LayerPtr inner) : inner_(std::move(inner)) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    if (!at::GradMode::is_enabled()) return inner_->Forward(x, context);
    return nn::Recompute(x, [inner = inner_, kept = KeptContext(context)](const at::Tensor& input) {
      return inner->Forward(input, kept.get());
    });
  }

 private:
  std::shared_ptr<nn::Layer> inner_;
};

}  // namespace

nn::LayerPtr RecomputedLayers::Norm(nn::LayerPtr norm) const {
  if (!options_.norms) return norm;
  return std::make_unique<Maker>(std::move(norm), offer_);
}

std::unique_ptr<nn::ResidualNorm> RecomputedLayers::JoinNorm(std::unique_ptr<nn::ResidualNorm> join,
                                                             nn::ParamPtr weight, double epsilon) const {
  if (!options_.norms) return join;
  return std::make_unique<JoinMaker>(std::move(join), std::move(weight), epsilon, offer_);
}

nn::LayerPtr RecomputedLayers::Activation(nn::LayerPtr activation) const {
  if (!options_.activation) return activation;
  return std::make_unique<Maker>(std::move(activation), offer_);
}

nn::LayerPtr RecomputedLayers::Reader(nn::LayerPtr reader) const {
  if (!options_.norms && !options_.activation) return reader;
  return std::make_unique<ReaderLayer>(std::move(reader), offer_);
}

std::unique_ptr<nn::AttentionCore> RecomputedLayers::Attention(std::unique_ptr<nn::AttentionCore> attention) const {
  if (!options_.attention) return attention;
  return std::make_unique<RecomputedAttention>(std::move(attention));
}

nn::LayerPtr RecomputedLayers::Experts(nn::LayerPtr experts) const {
  if (!options_.experts) return experts;
  return std::make_unique<RecomputedLayer>(std::move(experts));
}

}  // namespace slipway::engine::parallel
