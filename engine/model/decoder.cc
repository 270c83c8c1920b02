// Llama, Qwen2, Qwen3 and Qwen3-MoE as stage pieces: pre-norm decoder layers of grouped-query attention with rotary
// positions and a SwiGLU feed-forward, or a mixture of such. Qwen2 has biases on q, k and v; Qwen3 normalises each
// query and key head.
#include <ATen/ATen.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/stage_piece.h"

namespace slipway::engine::model {
namespace {

using arch::ModelArch;
using arch::Piece;
using nn::ForwardContext;
using nn::LayerFactory;

// The dropouts of layer k are sites 3k, 3k + 1 and 3k + 2.
enum class Dropout : uint32_t { kAttention, kAttentionOutput, kMlpOutput };
uint32_t SiteOf(int layer, Dropout dropout) {
  return 3 * static_cast<uint32_t>(layer) + static_cast<uint32_t>(dropout);
}

class EmbeddingPiece final : public StagePiece {
 public:
  EmbeddingPiece(const Piece& piece, LayerFactory& factory) : piece_(piece), tokens_(factory.Embedding("embedding")) {}
  const Piece& piece() const override { return piece_; }
  at::Tensor Forward(const at::Tensor&, const MicroBatch& batch, const ForwardContext& context) override {
    return tokens_->Forward(batch.tokens, context);
  }

 private:
  Piece piece_;
  std::unique_ptr<nn::EmbeddingLayer> tokens_;
};

class FeedForward final : public nn::Layer {
 public:
  FeedForward(const std::string& name, LayerFactory& factory)
      : gate_up_(factory.ColumnLinear(name + ".gate_up", /*bias=*/false)),
        swiglu_(factory.SwiGlu()),
        down_(factory.RowLinear(name + ".down")) {}
  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) override {
    return down_->Forward(swiglu_->Forward(gate_up_->Forward(x, context), context), context);
  }

 private:
  nn::LayerPtr gate_up_, swiglu_, down_;
};

class LayerPiece final : public StagePiece {
 public:
  LayerPiece(const ModelArch& arch, const Piece& piece, LayerFactory& factory, const at::Tensor& inverse_frequencies)
      : piece_(piece) {
    const std::string name = absl::StrCat("layers.", piece.layer);
    input_norm_ = factory.RmsNorm(name + ".input_norm", arch.norm_epsilon);
    qkv_ = factory.ColumnLinear(name + ".attention.qkv", arch.add_qkv_bias);
    attention_ = factory.Attention({.layer_name = name + ".attention",
                                    .num_heads = arch.num_attention_heads,
                                    .num_query_groups = arch.num_query_groups,
                                    .qk_norm = arch.qk_layernorm,
                                    .norm_epsilon = arch.norm_epsilon,
                                    .inverse_frequencies = inverse_frequencies,
                                    .dropout = arch.attention_dropout,
                                    .dropout_site = SiteOf(piece.layer, Dropout::kAttention)});
    attention_output_ = factory.RowLinear(name + ".attention.output");
    attention_join_ = factory.JoinNorm(
        name + ".post_attention_norm", arch.norm_epsilon,
        {.dropout = arch.hidden_dropout, .dropout_site = SiteOf(piece.layer, Dropout::kAttentionOutput)});
    if (arch.moe.has_value() && arch.moe->HasExperts(piece.layer)) {
      mlp_ = factory.Experts(name + ".mlp", *arch.moe, piece.layer);
    } else {
      mlp_ = std::make_unique<FeedForward>(name + ".mlp", factory);
    }
    mlp_join_ =
        factory.Join({.dropout = arch.hidden_dropout, .dropout_site = SiteOf(piece.layer, Dropout::kMlpOutput)});
  }
  const Piece& piece() const override { return piece_; }

  at::Tensor Forward(const at::Tensor& x, const MicroBatch&, const ForwardContext& context) override {
    const at::Tensor heads = attention_->Forward(qkv_->Forward(input_norm_->Forward(x, context), context), context);
    const auto [h, normed] = attention_join_->Forward(x, attention_output_->Forward(heads, context), context);
    return mlp_join_->Forward(h, mlp_->Forward(normed, context), context);
  }

 private:
  Piece piece_;
  nn::LayerPtr input_norm_, qkv_, attention_output_, mlp_;
  std::unique_ptr<nn::AttentionCore> attention_;
  std::unique_ptr<nn::ResidualNorm> attention_join_;
  std::unique_ptr<nn::ResidualJoin> mlp_join_;
};

class HeadPiece final : public StagePiece {
 public:
  HeadPiece(const ModelArch& arch, const Piece& piece, LayerFactory& factory)
      : piece_(piece), norm_(factory.RmsNorm("final_norm", arch.norm_epsilon)), head_(factory.Head("output_layer")) {}
  const Piece& piece() const override { return piece_; }
  at::Tensor Forward(const at::Tensor& x, const MicroBatch& batch, const ForwardContext& context) override {
    const at::Tensor normed = norm_->Forward(x, context);
    return batch.labels.defined() ? head_->Loss(normed, batch.labels, batch.weights, context)
                                  : head_->Logits(normed, context);
  }

 private:
  Piece piece_;
  nn::LayerPtr norm_;
  std::unique_ptr<nn::LossHead> head_;
};

}  // namespace

StagePieces BuildDecoder(const ModelArch& arch, const std::vector<Piece>& pieces, LayerFactory& factory,
                         at::Device device) {
  const std::vector<float> frequencies = arch::RopeInverseFrequencies(arch);
  const at::Tensor inverse_frequencies = at::tensor(at::ArrayRef<float>(frequencies), at::kFloat).to(device);
  StagePieces built;
  for (const Piece& piece : pieces) {
    switch (piece.kind) {
      case Piece::Kind::kEmbedding:
        built.push_back(std::make_unique<EmbeddingPiece>(piece, factory));
        break;
      case Piece::Kind::kLayer:
        built.push_back(std::make_unique<LayerPiece>(arch, piece, factory, inverse_frequencies));
        break;
      case Piece::Kind::kHead:
        built.push_back(std::make_unique<HeadPiece>(arch, piece, factory));
        break;
    }
  }
  return built;
}

std::vector<Piece> AllPieces(const ModelArch& arch) {
  std::vector<Piece> pieces = {{Piece::Kind::kEmbedding}};
  for (int layer = 0; layer < arch.num_layers; ++layer) pieces.push_back({Piece::Kind::kLayer, layer});
  pieces.push_back({Piece::Kind::kHead});
  return pieces;
}

at::Tensor ForwardPieces(const StagePieces& pieces, at::Tensor x, const MicroBatch& batch,
                         const ForwardContext& context) {
  for (const auto& piece : pieces) x = piece->Forward(x, batch, context);
  return x;
}

}  // namespace slipway::engine::model
