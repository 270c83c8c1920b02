// How a model gets its layers. A model file names what it wants (the fuse group and the way its matrix is cut); the
// factory returns layers that already know their local shapes, their groups and their handles. So no model file asks
// for a parallel size, and LoRA or fp8 wrap here. The implementation is engine/parallel's.
#ifndef SLIPWAY_ENGINE_NN_LAYER_FACTORY_H_
#define SLIPWAY_ENGINE_NN_LAYER_FACTORY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engine/arch/moe_arch.h"
#include "engine/nn/functions.h"
#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn {

class KeyValueCache;

// What routing did in a step: each layer of experts adds its part; summed over all ranks by whoever reads it.
struct RoutingStatistics {
  // fp64 [layers, E + 3]: by expert the slots that chose it, before anything was dropped; slots dropped; the balancing
  // loss and the z-loss, summed over samples. Layers without experts stay zero.
  at::Tensor table;
};

// What a forward pass knows beside its input.
struct ForwardContext {
  const SequenceLayout* layout = nullptr;
  bool training = true;  // dropout on
  uint64_t seed = 0;     // with step, the key of the counter-based random numbers
  int64_t step = 0;
  // The gradient of a loss that every sample of the global batch has one of (routers'): 1 / samples of the global
  // batch.
  double sample_loss_scale = 0;
  RoutingStatistics* routing = nullptr;
  KeyValueCache* cache = nullptr;  // generation: the batch continues the one row whose keys and values these are
};

// One input tensor [T, in], one output tensor [T, out]. Under sequence parallelism what stands between the blocks (the
// output of embedding and row-parallel layers, norms, joins, the input of column-parallel layers and of the head) has a
// rank's own T / tp tokens; layers know it from their factory.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor Forward(const at::Tensor& x, const ForwardContext& context) = 0;
};
using LayerPtr = std::unique_ptr<Layer>;

// int64 ids [T] → [T, hidden].
class EmbeddingLayer {
 public:
  virtual ~EmbeddingLayer() = default;
  virtual at::Tensor Forward(const at::Tensor& ids, const ForwardContext& context) = 0;
};

// q, k, v as one [T, (heads + 2 × groups) × head_dim] of local heads → [T, heads × head_dim].
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  virtual at::Tensor Forward(const at::Tensor& qkv, const ForwardContext& context) = 0;
};

// The residual join: residual + dropout(y).
class ResidualJoin {
 public:
  virtual ~ResidualJoin() = default;
  virtual at::Tensor Forward(const at::Tensor& residual, const at::Tensor& y, const ForwardContext& context) = 0;
};
// The residual join and the norm that follows it.
class ResidualNorm {
 public:
  virtual ~ResidualNorm() = default;
  virtual Joined Forward(const at::Tensor& residual, const at::Tensor& y, const ForwardContext& context) = 0;
};

// Hidden states → loss, or logits. Linear and cross-entropy in one, so that logits of a whole batch need not exist.
class LossHead {
 public:
  virtual ~LossHead() = default;
  // labels int64 [T] (any value where weight is 0), weights fp32 [T] → Σ weight × token loss over this micro-batch, an
  // fp32 scalar.
  virtual at::Tensor Loss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weights,
                          const ForwardContext& context) = 0;
  // fp32 logits [T, vocabulary] without padding columns; no gradient.
  virtual at::Tensor Logits(const at::Tensor& x, const ForwardContext& context) = 0;
};

struct AttentionOptions {
  std::string layer_name;  // "layers.3.attention": names the fuse groups of the q and k norms, and the cache's part
  int64_t num_heads = 0;   // global, as are the groups
  int64_t num_query_groups = 0;
  bool qk_norm = false;
  double norm_epsilon = 0;
  at::Tensor inverse_frequencies;  // fp32 [head_dim / 2]
  double dropout = 0;
  uint32_t dropout_site = 0;
};

struct ResidualOptions {
  double dropout = 0;
  uint32_t dropout_site = 0;
};

class LayerFactory {
 public:
  virtual ~LayerFactory() = default;

  virtual std::unique_ptr<EmbeddingLayer> Embedding(const std::string& fuse_group) = 0;
  // Output features cut over tensor-parallel ranks; its bias, if asked for, is the group `<fuse_group>_bias`.
  virtual LayerPtr ColumnLinear(const std::string& fuse_group, bool bias) = 0;
  // Input features cut; the partial sums are reduced.
  virtual LayerPtr RowLinear(const std::string& fuse_group) = 0;
  virtual LayerPtr RmsNorm(const std::string& fuse_group, double epsilon) = 0;
  // [T, 2I] (gate | up, local) → [T, I].
  virtual LayerPtr SwiGlu() = 0;
  // The experts of one layer with their router: the groups `<name>.router`, `<name>.experts.gate_up`, … (and the shared
  // experts', where there are such).
  virtual LayerPtr Experts(const std::string& name, const arch::MoeArch& moe, int layer) = 0;
  virtual std::unique_ptr<AttentionCore> Attention(const AttentionOptions& options) = 0;
  virtual std::unique_ptr<ResidualJoin> Join(const ResidualOptions& options) = 0;
  virtual std::unique_ptr<ResidualNorm> JoinNorm(const std::string& fuse_group, double epsilon,
                                                 const ResidualOptions& options) = 0;
  virtual std::unique_ptr<LossHead> Head(const std::string& fuse_group) = 0;
};

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_LAYER_FACTORY_H_
