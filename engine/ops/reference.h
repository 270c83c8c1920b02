// The reference implementations: plain ATen, on any device, registered as CompositeExplicitAutograd. They are what the
// kernels of engine/ops/cpu_kernels.h and of the CUDA plug-in are tested against; clarity comes before speed.
#ifndef SLIPWAY_ENGINE_OPS_REFERENCE_H_
#define SLIPWAY_ENGINE_OPS_REFERENCE_H_

#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops::reference {

// The type in which norms, softmax, RoPE and loss of x are computed.
inline at::ScalarType StatisticsType(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// reference_norm.cc
RmsNormFn RmsNorm;
AddRmsNormFn AddRmsNorm;
RmsNormBackwardFn RmsNormBackward;
RopeFn Rope;
QkNormRopeFn QkNormRope;
QkNormRopeBackwardFn QkNormRopeBackward;
SwiGluFn SwiGlu;
SwiGluBackwardFn SwiGluBackward;

// reference_attention.cc
AttentionFn Attention;
AttentionBackwardFn AttentionBackward;
AttentionBlockFn AttentionBlock;
AttentionBlockBackwardFn AttentionBlockBackward;
AttentionDropoutFn AttentionDropout;
AttentionDropoutBackwardFn AttentionDropoutBackward;
DropoutMaskFn DropoutMask;
AddDropoutFn AddDropout;
DropoutBackwardFn DropoutBackward;

// reference_grouped.cc
GroupedMmFn GroupedMm;
GroupedMmAccumulateFn GroupedMmAccumulate;

// reference_loss.cc
EmbeddingFn Embedding;
EmbeddingBackwardFn EmbeddingBackward;
LogitsFn Logits;
CrossEntropyFn CrossEntropy;
CrossEntropyBackwardFn CrossEntropyBackward;
MmAccumulateFn MmAccumulate;
BiasGradAccumulateFn BiasGradAccumulate;
SumSquaresFn SumSquares;
AdamWFn AdamW;

}  // namespace slipway::engine::ops::reference

#endif  // SLIPWAY_ENGINE_OPS_REFERENCE_H_
