#include "engine/parallel/parallel_layer_factory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "engine/nn/functions.h"
#include "engine/nn/key_value_cache.h"
#include "engine/parallel/moe_layer.h"

namespace slipway::engine::parallel {
namespace {

using nn::ForwardContext;
using nn::ParamPtr;
using nn::TensorParallel;

nn::DropoutSite SiteOf(double probability, uint32_t site, const ForwardContext& context) {
  return {.probability = context.training ? probability : 0, .seed = context.seed, .step = context.step, .site = site};
}

// A generation continues one row by a few tokens, which do not divide over the ranks.
TensorParallel TpOf(TensorParallel tp, const ForwardContext& context) {
  tp.sequence_parallel = tp.sequence_parallel && context.cache == nullptr;
  return tp;
}

// Ids outside of the vocabulary would come out as zeros or as padding rows. Data are checked before training; on the
// CPU this costs nothing, on CUDA it would wait for the device.
void CheckIds(const at::Tensor& ids, int64_t vocab_size, const char* what) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto [lowest, highest] = at::aminmax(ids);
  const int64_t low = lowest.item<int64_t>(), high = highest.item<int64_t>();
  TORCH_CHECK(low >= 0 && high < vocab_size, what, " ", low < 0 ? low : high, " is outside of the vocabulary of ",
              vocab_size, " tokens");
}

class VocabularyEmbedding final : public nn::EmbeddingLayer {
 public:
  VocabularyEmbedding(ParamPtr weight, TensorParallel tp, int64_t vocab_size)
      : weight_(std::move(weight)), tp_(std::move(tp)), vocab_size_(vocab_size) {}
  at::Tensor Forward(const at::Tensor& ids, const ForwardContext& context) override {
    CheckIds(ids, vocab_size_, "token id");
    return nn::LeaveBlock(nn::Embedding(ids, weight_, /*shard=*/tp_.group->rank()), TpOf(tp_, context));
  }

 private:
  ParamPtr weight_;
  TensorParallel tp_;
  int64_t vocab_size_;
};

class ColumnLinearLayer final : public nn::Layer {
 public:
  ColumnLinearLayer(ParamPtr weight, ParamPtr bias, TensorParallel tp)
      : weight_(std::move(weight)), bias_(std::move(bias)), tp_(std::move(tp)) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    return nn::ColumnParallelLinear(x, weight_, bias_, TpOf(tp_, context));
  }

 private:
  ParamPtr weight_, bias_;
  TensorParallel tp_;
};

class RowLinearLayer final : public nn::Layer {
 public:
  RowLinearLayer(ParamPtr weight, TensorParallel tp) : weight_(std::move(weight)), tp_(std::move(tp)) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    return nn::RowParallelLinear(x, weight_, TpOf(tp_, context));
  }

 private:
  ParamPtr weight_;
  TensorParallel tp_;
};

class RmsNormLayer final : public nn::Layer {
 public:
  RmsNormLayer(ParamPtr weight, double epsilon) : weight_(std::move(weight)), epsilon_(epsilon) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext&) override { return nn::RmsNorm(x, weight_, epsilon_); }

 private:
  ParamPtr weight_;
  double epsilon_;
};

class SwiGluLayer final : public nn::Layer {
 public:
  at::Tensor Forward(const at::Tensor& x, const ForwardContext&) override { return nn::SwiGlu(x); }
};

class RotaryAttention final : public nn::AttentionCore {
 public:
  RotaryAttention(const nn::AttentionOptions& options, nn::HeadCounts local, int64_t first_head, nn::ContextParallel cp,
                  ParamPtr q_norm, ParamPtr k_norm)
      : options_(options),
        cp_(std::move(cp)),
        local_(local),
        first_head_(first_head),
        q_norm_(std::move(q_norm)),
        k_norm_(std::move(k_norm)) {}

  at::Tensor Forward(const at::Tensor& qkv, const ForwardContext& context) override {
    const nn::SequenceLayout& layout = *context.layout;
    const at::Tensor placed = options_.qk_norm ? nn::QkNormRope(qkv, q_norm_, k_norm_, options_.norm_epsilon, layout,
                                                                options_.inverse_frequencies, local_)
                                               : nn::Rope(qkv, layout, options_.inverse_frequencies, local_);
    if (context.cache != nullptr) return context.cache->Attend(options_.layer_name, placed, local_);
    const nn::DropoutSite dropout = SiteOf(options_.dropout, options_.dropout_site, context);
    if (layout.context != nullptr) {
      return nn::ContextAttention(placed, layout, local_, first_head_, dropout, cp_);
    }
    if (dropout.probability == 0) return nn::Attention(placed, layout, local_);
    return nn::AttentionWithDropout(placed, layout, local_, first_head_, dropout);
  }

 private:
  nn::AttentionOptions options_;
  nn::ContextParallel cp_;
  nn::HeadCounts local_;
  int64_t first_head_;
  ParamPtr q_norm_, k_norm_;
};

// residual + dropout(y) of the tokens that this rank has between the blocks.
at::Tensor JoinResidual(const at::Tensor& residual, const at::Tensor& y, const TensorParallel& tp,
                        const nn::DropoutSite& dropout, const ForwardContext& context) {
  if (dropout.probability == 0 || !TpOf(tp, context).sequence_parallel) {
    return nn::AddDropout(residual, y, *context.layout, dropout);
  }
  return nn::AddDropout(residual, y, nn::SliceOfTokens(*context.layout, tp.group->rank(), tp.group->size()), dropout);
}

class DropoutJoin final : public nn::ResidualJoin {
 public:
  DropoutJoin(TensorParallel tp, const nn::ResidualOptions& options) : tp_(std::move(tp)), options_(options) {}
  at::Tensor Forward(const at::Tensor& residual, const at::Tensor& y, const ForwardContext& context) override {
    return JoinResidual(residual, y, tp_, SiteOf(options_.dropout, options_.dropout_site, context), context);
  }

 private:
  TensorParallel tp_;
  nn::ResidualOptions options_;
};

class DropoutJoinNorm final : public nn::ResidualNorm {
 public:
  DropoutJoinNorm(ParamPtr weight, double epsilon, TensorParallel tp, const nn::ResidualOptions& options)
      : weight_(std::move(weight)), epsilon_(epsilon), tp_(std::move(tp)), options_(options) {}
  nn::Joined Forward(const at::Tensor& residual, const at::Tensor& y, const ForwardContext& context) override {
    const nn::DropoutSite dropout = SiteOf(options_.dropout, options_.dropout_site, context);
    if (dropout.probability == 0) return nn::AddRmsNorm(residual, y, weight_, epsilon_);
    at::Tensor sum = JoinResidual(residual, y, tp_, dropout, context);
    at::Tensor normed = nn::RmsNorm(sum, weight_, epsilon_);
    return {std::move(sum), std::move(normed)};
  }

 private:
  ParamPtr weight_;
  double epsilon_;
  TensorParallel tp_;
  nn::ResidualOptions options_;
};

class VocabularyHead final : public nn::LossHead {
 public:
  VocabularyHead(ParamPtr weight, TensorParallel tp, const LayerFactoryOptions& options)
      : weight_(std::move(weight)),
        tp_(std::move(tp)),
        options_{
            .vocab_size = options.vocab_size, .group = tp_.group, .chunk_elements = options.logits_chunk_elements} {}
  at::Tensor Loss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weights,
                  const ForwardContext& context) override {
    if (labels.is_cpu()) CheckIds(labels.masked_select(weights != 0), options_.vocab_size, "label");
    return nn::LinearCrossEntropy(nn::EnterBlock(x, TpOf(tp_, context)), labels, weights, weight_, options_);
  }
  at::Tensor Logits(const at::Tensor& x, const ForwardContext& context) override {
    return nn::VocabularyLogits(nn::EnterBlock(x, TpOf(tp_, context)), weight_, options_);
  }

 private:
  ParamPtr weight_;
  TensorParallel tp_;
  nn::VocabularyOptions options_;
};

}  // namespace

ParamPtr ParallelLayerFactory::Handle(const std::string& fuse_group) const {
  ParamPtr handle = handles_(fuse_group);
  TORCH_CHECK(handle, "this rank holds no parameters named ", fuse_group);
  return handle;
}

std::unique_ptr<nn::EmbeddingLayer> ParallelLayerFactory::Embedding(const std::string& fuse_group) {
  return std::make_unique<VocabularyEmbedding>(Handle(fuse_group), tp_, options_.vocab_size);
}

nn::LayerPtr ParallelLayerFactory::ColumnLinear(const std::string& fuse_group, bool bias) {
  return recomputed_.Reader(
      std::make_unique<ColumnLinearLayer>(Handle(fuse_group), bias ? Handle(fuse_group + "_bias") : ParamPtr(), tp_));
}

nn::LayerPtr ParallelLayerFactory::RowLinear(const std::string& fuse_group) {
  return recomputed_.Reader(std::make_unique<RowLinearLayer>(Handle(fuse_group), tp_));
}

nn::LayerPtr ParallelLayerFactory::RmsNorm(const std::string& fuse_group, double epsilon) {
  nn::LayerPtr norm = std::make_unique<RmsNormLayer>(Handle(fuse_group), epsilon);
  // The final norm's reader is the loss, which keeps what it needs.
  return absl::StartsWith(fuse_group, "layers.") ? recomputed_.Norm(std::move(norm)) : std::move(norm);
}

nn::LayerPtr ParallelLayerFactory::SwiGlu() { return recomputed_.Activation(std::make_unique<SwiGluLayer>()); }

nn::LayerPtr ParallelLayerFactory::Experts(const std::string& name, const arch::MoeArch& moe, int layer) {
  MoeParts parts;
  parts.router = Handle(name + ".router");
  if (moe.expert_bias) parts.bias = Handle(name + ".expert_bias");
  parts.gate_up = Handle(name + ".experts.gate_up");
  parts.down = Handle(name + ".experts.down");
  if (moe.shared_expert_intermediate_size > 0) {
    // Not readers of what is computed again: the router and the experts read the same input.
    parts.shared_gate_up =
        std::make_unique<ColumnLinearLayer>(Handle(name + ".shared_expert.gate_up"), ParamPtr(), tp_);
    parts.shared_down = std::make_unique<RowLinearLayer>(Handle(name + ".shared_expert.down"), tp_);
  }
  if (moe.shared_expert_gate) parts.shared_gate = Handle(name + ".shared_expert_gate");
  return recomputed_.Experts(MakeMoeLayer(moe, layer, std::move(parts), groups_, tp_));
}

std::unique_ptr<nn::AttentionCore> ParallelLayerFactory::Attention(const nn::AttentionOptions& options) {
  const int64_t ranks = tp_.group->size();
  TORCH_CHECK(options.num_heads % ranks == 0 &&
                  (options.num_query_groups % ranks == 0 || ranks % options.num_query_groups == 0),
              options.layer_name, ": ", options.num_heads, " heads in ", options.num_query_groups,
              " groups do not divide over ", ranks, " tensor-parallel ranks");
  // With fewer key/value heads than ranks, neighbours hold copies of one.
  const nn::HeadCounts local{.heads = options.num_heads / ranks,
                             .groups = std::max<int64_t>(options.num_query_groups / ranks, 1)};
  ParamPtr q_norm, k_norm;
  if (options.qk_norm) {
    q_norm = Handle(options.layer_name + ".q_norm");
    k_norm = Handle(options.layer_name + ".k_norm");
  }
  return recomputed_.Attention(
      std::make_unique<RotaryAttention>(options, local, tp_.group->rank() * local.heads, cp_, q_norm, k_norm));
}

std::unique_ptr<nn::ResidualJoin> ParallelLayerFactory::Join(const nn::ResidualOptions& options) {
  return std::make_unique<DropoutJoin>(tp_, options);
}

std::unique_ptr<nn::ResidualNorm> ParallelLayerFactory::JoinNorm(const std::string& fuse_group, double epsilon,
                                                                 const nn::ResidualOptions& options) {
  const ParamPtr weight = Handle(fuse_group);
  return recomputed_.JoinNorm(std::make_unique<DropoutJoinNorm>(weight, epsilon, tp_, options), weight, epsilon);
}

std::unique_ptr<nn::LossHead> ParallelLayerFactory::Head(const std::string& fuse_group) {
  return std::make_unique<VocabularyHead>(Handle(fuse_group), tp_, options_);
}

}  // namespace slipway::engine::parallel
