// Our operations, called through torch's dispatcher: ops::RmsNorm(x, weight, eps). What each does, and how it may be
// called, stands in op_signatures.h. Used by engine/nn's autograd Functions and by engine/optim; nothing else calls
// them.
//
// Thread-safe. Errors: throws c10::Error on tensors that do not fit.
#ifndef SLIPWAY_ENGINE_OPS_OPS_H_
#define SLIPWAY_ENGINE_OPS_OPS_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops {

// The registered operator of a schema. Defined beside the registration, so that whoever calls an operation links it
// too.
c10::OperatorHandle FindOperator(const char* schema);

template <const char* kSchema, typename Fn>
struct Operation;

template <const char* kSchema, typename Result, typename... Args>
struct Operation<kSchema, Result(Args...)> {
  Result operator()(Args... args) const {
    static const auto op = FindOperator(kSchema).typed<Result(Args...)>();
    return op.call(std::forward<Args>(args)...);
  }
};

inline constexpr Operation<kRmsNorm, RmsNormFn> RmsNorm;
inline constexpr Operation<kAddRmsNorm, AddRmsNormFn> AddRmsNorm;
inline constexpr Operation<kRmsNormBackward, RmsNormBackwardFn> RmsNormBackward;
inline constexpr Operation<kRope, RopeFn> Rope;
inline constexpr Operation<kQkNormRope, QkNormRopeFn> QkNormRope;
inline constexpr Operation<kQkNormRopeBackward, QkNormRopeBackwardFn> QkNormRopeBackward;
inline constexpr Operation<kSwiGlu, SwiGluFn> SwiGlu;
inline constexpr Operation<kSwiGluBackward, SwiGluBackwardFn> SwiGluBackward;
inline constexpr Operation<kAttention, AttentionFn> Attention;
inline constexpr Operation<kAttentionBackward, AttentionBackwardFn> AttentionBackward;
inline constexpr Operation<kAttentionBlock, AttentionBlockFn> AttentionBlock;
inline constexpr Operation<kAttentionBlockBackward, AttentionBlockBackwardFn> AttentionBlockBackward;
inline constexpr Operation<kAttentionDropout, AttentionDropoutFn> AttentionDropout;
inline constexpr Operation<kAttentionDropoutBackward, AttentionDropoutBackwardFn> AttentionDropoutBackward;
inline constexpr Operation<kDropoutMask, DropoutMaskFn> DropoutMask;
inline constexpr Operation<kAddDropout, AddDropoutFn> AddDropout;
inline constexpr Operation<kDropoutBackward, DropoutBackwardFn> DropoutBackward;
inline constexpr Operation<kEmbedding, EmbeddingFn> Embedding;
inline constexpr Operation<kEmbeddingBackward, EmbeddingBackwardFn> EmbeddingBackward;
inline constexpr Operation<kLogits, LogitsFn> Logits;
inline constexpr Operation<kCrossEntropy, CrossEntropyFn> CrossEntropy;
inline constexpr Operation<kCrossEntropyBackward, CrossEntropyBackwardFn> CrossEntropyBackward;
inline constexpr Operation<kMmAccumulate, MmAccumulateFn> MmAccumulate;
inline constexpr Operation<kBiasGradAccumulate, BiasGradAccumulateFn> BiasGradAccumulate;
inline constexpr Operation<kGroupedMm, GroupedMmFn> GroupedMm;
inline constexpr Operation<kGroupedMmAccumulate, GroupedMmAccumulateFn> GroupedMmAccumulate;
inline constexpr Operation<kSumSquares, SumSquaresFn> SumSquares;
inline constexpr Operation<kAdamW, AdamWFn> AdamW;

}  // namespace slipway::engine::ops

#endif  // SLIPWAY_ENGINE_OPS_OPS_H_
