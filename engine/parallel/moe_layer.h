// A layer of experts on one rank: router, dispatch, this rank's experts, shared experts. What a token's
// sequence-parallel or context-parallel neighbours do does not matter here: every rank routes its own tokens.
// Thread-safety: one thread. Errors: c10::Error, CommError.
#ifndef SLIPWAY_ENGINE_PARALLEL_MOE_LAYER_H_
#define SLIPWAY_ENGINE_PARALLEL_MOE_LAYER_H_

#include "engine/arch/moe_arch.h"
#include "engine/comm/parallel_groups.h"
#include "engine/nn/layer_factory.h"
#include "engine/nn/parallel_linear.h"
#include "engine/nn/param_handle.h"

namespace slipway::engine::parallel {

// The parameters of a layer; those that the model does not have are null.
struct MoeParts {
  nn::ParamPtr router;         // [E, H]
  nn::ParamPtr bias;           // [E]
  nn::ParamPtr gate_up, down;  // [E_local · 2I, H] and [E_local · H, I], expert after expert, I cut over etp
  nn::LayerPtr shared_gate_up, shared_down;
  nn::ParamPtr shared_gate;  // [1, H]
};

// layer: its number in the model, and its row in the routing statistics.
nn::LayerPtr MakeMoeLayer(const arch::MoeArch& moe, int layer, MoeParts parts, const comm::ParallelGroups& groups,
                          const nn::TensorParallel& tp);

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_MOE_LAYER_H_
