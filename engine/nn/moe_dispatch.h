// How tokens reach the experts that they chose, and come back. Experts lie on the ranks of a group (etp × ep): rank
// s + etp · r holds slice s of each of the experts [r · E / ep, (r + 1) · E / ep).
//
//   Dispatched sent = dispatcher->Dispatch(x, routing);
//   y = experts(sent.rows, sent.probs, sent.ends);
//   out = dispatcher->Combine(y, sent);
//
//  - alltoall sends each token to the ranks of its experts, and partial results back: one message per slot and slice.
//    It waits for the device once, to learn how many rows each rank sends (not when experts are padded to their
//    capacity).
//  - allgather gives all tokens of the group to all its ranks and sums what comes back; it never waits for the device,
//    at the price of rows for the worst case. With a group of one rank nothing is sent at all.
// Thread-safety: one thread. Errors: c10::Error, CommError.
#ifndef SLIPWAY_ENGINE_NN_MOE_DISPATCH_H_
#define SLIPWAY_ENGINE_NN_MOE_DISPATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/arch/moe_arch.h"
#include "engine/comm/communicator.h"
#include "engine/nn/moe_functions.h"
#include "engine/nn/moe_router.h"

namespace slipway::engine::nn {

struct Dispatched {
  at::Tensor rows;   // [R, H], expert after expert
  at::Tensor probs;  // [R, 1]: the weight of each row's result
  at::Tensor ends;   // int32 [local experts], as ops::GroupedMm takes them; rows past the last are nobody's
  // What Combine needs.
  RowMap from_tokens;                  // this rank's (alltoall) or the group's (allgather) tokens → rows
  RowMap by_expert;                    // alltoall: rows as they arrived → by expert
  std::vector<int64_t> sent, arrived;  // alltoall
  int64_t tokens = 0;                  // of this rank
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  // x [T, H]. capacity: rows that each expert gets from each rank's tokens, the missing ones being zeros; 0: as many as
  // chose it.
  virtual Dispatched Dispatch(const at::Tensor& x, const Routing& routing, int64_t capacity) = 0;
  // y [R, H] → [T, H]: the sum of each token's rows. Where an expert is cut into slices, y are partial sums.
  virtual at::Tensor Combine(const at::Tensor& y, const Dispatched& sent) = 0;
};

// group: etp × ep, of which etp ranks hold slices of one expert.
std::unique_ptr<TokenDispatcher> MakeDispatcher(const arch::MoeArch& moe, comm::CommPtr group, int etp);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_MOE_DISPATCH_H_
