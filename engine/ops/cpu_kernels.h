// Kernels for the CPU, where the reference would be slow: fewer passes over memory, torch's fused attention. The same
// contracts as the reference. Results do not depend on timing; with the number of threads fixed they are the same bits.
#ifndef SLIPWAY_ENGINE_OPS_CPU_KERNELS_H_
#define SLIPWAY_ENGINE_OPS_CPU_KERNELS_H_

#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops::cpu {

RmsNormFn RmsNorm;
AddRmsNormFn AddRmsNorm;
RmsNormBackwardFn RmsNormBackward;
RopeFn Rope;
SwiGluFn SwiGlu;
SwiGluBackwardFn SwiGluBackward;
AttentionFn Attention;
AttentionBackwardFn AttentionBackward;
AttentionBlockFn AttentionBlock;
AttentionBlockBackwardFn AttentionBlockBackward;
CrossEntropyFn CrossEntropy;
CrossEntropyBackwardFn CrossEntropyBackward;
EmbeddingBackwardFn EmbeddingBackward;
SumSquaresFn SumSquares;
AdamWFn AdamW;

}  // namespace slipway::engine::ops::cpu

#endif  // SLIPWAY_ENGINE_OPS_CPU_KERNELS_H_
