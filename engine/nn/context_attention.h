// Attention over rows that several ranks share (context parallelism). Each rank has two chunks of every row, the
// rank-th and the rank-th from the end (SequenceLayout::context), so that the causal mask leaves all of them the same
// work. Three ways of bringing queries and keys together, under Megatron-LM's names:
//
//   p2p         keys and values travel around the ring, each step beside the computation with those at hand; a rank
//               never holds more than two blocks (its own, and one under way) and results are merged by their
//               log-sum-exp. In the backward pass the gradients of a block travel with it and come home.
//   all_gather  every rank gathers all keys and values; their gradients are reduce-scattered.
//   a2a         ranks exchange tokens for heads (Ulysses): each computes whole rows of its share of the heads.
//
// Sources: Liu et al., Ring Attention with Blockwise Transformers (2023); Jacobs et al., DeepSpeed Ulysses (2023);
// Megatron-LM's cp_comm_type. Thread-safety and errors: as functions.h and comm_functions.h.
#ifndef SLIPWAY_ENGINE_NN_CONTEXT_ATTENTION_H_
#define SLIPWAY_ENGINE_NN_CONTEXT_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "engine/comm/communicator.h"
#include "engine/nn/functions.h"
#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn {

enum class ContextComm : uint8_t { kRing, kAllGather, kAllToAll };

// Of "p2p", "all_gather" and "a2a". REQUIRES: one of them.
ContextComm ContextCommOf(std::string_view name);

struct ContextParallel {
  comm::CommPtr group;
  ContextComm comm = ContextComm::kRing;
};

// What Attention gives for this rank's tokens: qkv [T, (heads + 2 · groups) · head_dim], positions already applied →
// [T, heads · head_dim]. first_head is the model's number of the first local head. REQUIRES: layout.context is set and
// of the group's size. Throws c10::Error: a2a when the heads do not divide over the group, the others when there is
// dropout (which needs the probabilities of whole rows).
at::Tensor ContextAttention(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts, int64_t first_head,
                            const DropoutSite& dropout, const ContextParallel& context);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_CONTEXT_ATTENTION_H_
