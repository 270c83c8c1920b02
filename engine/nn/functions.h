// The differentiable operations of the models: one autograd Function each, over ParamHandles, on every device. The
// arithmetic is engine/ops'; here stands what is saved, who gets which gradient, and when a handle is told.
//
// Activations are [T, features], contiguous, of the compute type. A parameter's gradient goes straight to its handle's
// main gradient; torch sees none. An operation whose input needs no gradient still gets its backward when its parameter
// wants one. A null bias handle means no bias. Thread-safety: that of the handles. Errors: throws c10::Error on shapes
// that do not fit.
#ifndef SLIPWAY_ENGINE_NN_FUNCTIONS_H_
#define SLIPWAY_ENGINE_NN_FUNCTIONS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "engine/comm/communicator.h"
#include "engine/nn/param_handle.h"
#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn {

// x [T, in] · weightᵀ [out, in] (+ bias [out]).
at::Tensor Linear(const at::Tensor& x, const ParamPtr& weight, const ParamPtr& bias = {});

// ids int64 [T] → [T, H]. The weight is the `shard`-th run of rows of the table; ids of other shards give zeros.
at::Tensor Embedding(const at::Tensor& ids, const ParamPtr& weight, int64_t shard);

at::Tensor RmsNorm(const at::Tensor& x, const ParamPtr& weight, double epsilon);

struct Joined {
  at::Tensor sum;     // residual + y
  at::Tensor normed;  // its norm
};
// One pass over memory for the residual join and the norm that follows.
Joined AddRmsNorm(const at::Tensor& residual, const at::Tensor& y, const ParamPtr& weight, double epsilon);

// Heads of this rank in a packed q | k | v of [T, (heads + 2 · groups) · head_dim].
struct HeadCounts {
  int64_t heads = 0;
  int64_t groups = 0;
};

// Turns query and key heads by their tokens' positions. Works in place: `qkv` must be the result of an operation that
// does not need it again (a Linear), and is returned.
at::Tensor Rope(const at::Tensor& qkv, const SequenceLayout& layout, const at::Tensor& inverse_frequencies,
                HeadCounts counts);
// The same after an RMS norm of each query and key head; out of place.
at::Tensor QkNormRope(const at::Tensor& qkv, const ParamPtr& q_weight, const ParamPtr& k_weight, double epsilon,
                      const SequenceLayout& layout, const at::Tensor& inverse_frequencies, HeadCounts counts);

// Causal attention within each row → [T, heads · head_dim]; scores are scaled by 1 / sqrt(head_dim).
at::Tensor Attention(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts);

// One dropout of one layer in one step; see common/philox.h.
struct DropoutSite {
  double probability = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  uint32_t site = 0;
};
// Attention with dropout of its probabilities. first_head: the model's number of the first local head.
at::Tensor AttentionWithDropout(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts,
                                int64_t first_head, const DropoutSite& dropout);

// residual + dropout(y); residual + y when the probability is 0.
at::Tensor AddDropout(const at::Tensor& residual, const at::Tensor& y, const SequenceLayout& layout,
                      const DropoutSite& dropout);

// [T, 2I] (gate | up) → silu(gate) · up [T, I].
at::Tensor SwiGlu(const at::Tensor& gate_up);

// The vocabulary of an output layer, whose rows are cut over the ranks of a group, and how the loss is computed.
struct VocabularyOptions {
  int64_t vocab_size = 0;  // rows past it are padding and never enter the softmax
  comm::CommPtr group;
  int64_t chunk_elements = int64_t{1} << 25;  // bound on the logits that exist at one time
};
// Σ weights[t] · cross-entropy(x[t] · weightᵀ, labels[t]), an fp32 scalar, the same on all ranks of the group. A token
// of weight 0 contributes nothing, whatever its logits are. The gradient of x is this rank's part of the sum over the
// group.
//
// Works in chunks of tokens. The scale of the gradients (1 / Σ weights, the loss scale) is known only in the backward
// pass, so the weight gradient cannot be made in the forward; what is kept is x, the log-sum-exp per token and the
// logits of the last chunk alone. The backward begins with those and computes the other chunks' logits again: memory
// stays at one chunk, and a batch that fits into one chunk computes nothing twice.
at::Tensor LinearCrossEntropy(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weights,
                              const ParamPtr& weight, const VocabularyOptions& options);

// The logits that this loss is computed from, over the whole vocabulary: fp32 [T, vocab_size], on every rank. No
// gradient.
at::Tensor VocabularyLogits(const at::Tensor& x, const ParamPtr& weight, const VocabularyOptions& options);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_FUNCTIONS_H_
