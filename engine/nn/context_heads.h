// The exchange of tokens for heads (all-to-all context parallelism): conjugate pairs. A group of n ranks that each have
// some tokens of every row and all heads comes to have all tokens and 1 / n of the heads, and back.
#ifndef SLIPWAY_ENGINE_NN_CONTEXT_HEADS_H_
#define SLIPWAY_ENGINE_NN_CONTEXT_HEADS_H_

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"
#include "engine/nn/functions.h"
#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn::internal {

// Heads that each rank gets. Key/value groups that do not divide are given to several ranks each. Throws c10::Error
// naming both numbers when the query heads do not divide.
HeadCounts HeadsOfRank(HeadCounts counts, int ranks);

// qkv [T, (heads + 2 · groups) · D] of this rank's tokens → those of HeadsOfRank for the tokens of map.whole, in its
// order. The gradient of a group that several ranks got is the sum of theirs.
at::Tensor TokensForHeads(const at::Tensor& qkv, const ContextMap& map, HeadCounts counts, const comm::CommPtr& group);
// [n · T, own heads · D] → [T, heads · D].
at::Tensor HeadsForTokens(const at::Tensor& out, const ContextMap& map, const comm::CommPtr& group);

}  // namespace slipway::engine::nn::internal

#endif  // SLIPWAY_ENGINE_NN_CONTEXT_HEADS_H_
