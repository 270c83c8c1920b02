// Attention on CUDA: cuDNN where all rows have one length, flash attention over ragged rows, and the memory-efficient
// kernel for fp32 (the other two take bf16 only). Signatures and meaning: engine/ops/op_signatures.h.
#ifndef SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_H_
#define SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_H_

#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops::cuda {

AttentionFn AttentionCuda;
AttentionBackwardFn AttentionBackwardCuda;
AttentionBlockFn AttentionBlockCuda;
AttentionBlockBackwardFn AttentionBlockBackwardCuda;

}  // namespace slipway::engine::ops::cuda

#endif  // SLIPWAY_ENGINE_OPS_CUDA_ATTENTION_H_
