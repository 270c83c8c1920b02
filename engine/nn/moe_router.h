// Which experts a token goes to, with which weight, and the losses that spread the load: functions of a router's logits
// in fp32 (fp64 for fp64). After Megatron-LM's router (megatron/core/transformer/moe/{router,moe_utils}.py).
//
// Thread-safe: pure functions but for the running counts of LoadBalance. Nothing here waits for the device. Errors:
// c10::Error, CommError.
#ifndef SLIPWAY_ENGINE_NN_MOE_ROUTER_H_
#define SLIPWAY_ENGINE_NN_MOE_ROUTER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/arch/moe_arch.h"
#include "engine/comm/communicator.h"

namespace slipway::engine::nn {

// A slot is one of the topk choices of a token.
struct Routing {
  at::Tensor experts;  // int64 [T, k]; num_experts where the slot is empty
  at::Tensor probs;    // of the logits' type [T, k], differentiable; 0 where the slot is empty
};

// logits [T, E]; bias fp32 [E] or undefined (it takes part in the choice alone); real bool [T]: padding tokens go
// nowhere.
Routing ChooseExperts(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& real,
                      const arch::MoeArch& moe);

// Rows that an expert takes of `tokens` tokens of a rank: ceil(tokens * topk / num_experts * factor).
int64_t ExpertCapacity(int64_t tokens, const arch::MoeArch& moe);

// Empties the slots that are more than `capacity` at their expert: those with the lowest probs go, or the last tokens
// (moe.drop_policy); of equals the earlier stays.
Routing DropOverCapacity(const Routing& routing, int64_t capacity, const arch::MoeArch& moe);

// Slots of each expert: of probs' type [E].
at::Tensor CountSlots(const at::Tensor& experts, int64_t num_experts, at::ScalarType type);

// What belongs to which sample: fp32/fp64 [R, T], 1 where token t of this rank is of sample r of the micro-batch.
// row_samples int64 [R] and sample_index int64 [T] as in SequenceLayout.
at::Tensor SampleMembership(const at::Tensor& row_samples, const at::Tensor& sample_index, at::ScalarType type);

// The groups over which a sample's, and the global batch's, tokens are spread.
struct LoadBalanceGroups {
  comm::CommPtr sample;  // tp × cp: ranks with tokens of the same samples
  comm::CommPtr batch;   // tp × dp × cp
};

// The loss terms of one layer and one micro-batch. Each is this rank's part; the sum over ranks and micro-batches,
// times 1 / (samples of the global batch), is the loss of the step. Undefined where the coefficient is 0.
struct RouterLosses {
  at::Tensor balance;
  at::Tensor z;
};

// Layer by layer; holds the counts of this step's earlier micro-batches (global_aux_loss).
//  - seq_aux_loss: Σ over samples of coeff · E / (k · T²) · Σ_e P_e · N_e, with P the sums of the scores and N the
//    counts over the sample's T tokens.
//  - aux_loss: the same over all tokens of the micro-batch, times its number of samples.
//  - global_aux_loss: N are the counts over the batch group, averaged over the step's micro-batches so far; T likewise
//    the tokens of one micro-batch of all ranks; times the samples of that.
//  - z-loss: Σ over samples of the mean over its tokens of coeff · log(Σ exp(logits))².
// The counted choice is a plain top-k of the scores: no bias, no groups, before anything is dropped. Padding counts for
// nothing. Only the first is the same on every layout and for every micro-batch size.
class LoadBalance {
 public:
  LoadBalance(const arch::MoeArch& moe, LoadBalanceGroups groups);

  // All ranks of the groups call it alike. membership: SampleMembership.
  RouterLosses Losses(const at::Tensor& logits, const at::Tensor& membership, int64_t step);

 private:
  at::Tensor SequenceLoss(const at::Tensor& scores, const at::Tensor& choice, const at::Tensor& membership,
                          const at::Tensor& tokens) const;
  at::Tensor BatchLoss(const at::Tensor& scores, const at::Tensor& choice, const at::Tensor& membership, int64_t step);

  arch::MoeArch moe_;
  LoadBalanceGroups groups_;
  int64_t counted_step_ = -1;
  int64_t counted_batches_ = 0;
  at::Tensor running_counts_;  // Σ over the step's micro-batches so far
};

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_MOE_ROUTER_H_
