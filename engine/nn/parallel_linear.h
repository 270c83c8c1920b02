// Linear layers whose matrix is cut over a tensor-parallel group, and the two borders between what the group computes
// together and what stands between such blocks (norms, residual joins, dropout).
//
//              between blocks                 inside a block
//   plain      every rank has all T tokens    every rank has all T tokens
//   sequence   rank r has the r-th T / size   every rank has all T tokens
//   parallel   tokens
//
// Source: Megatron-LM, megatron/core/tensor_parallel/layers.py (column-parallel layers keep their own tokens alone and
// gather the others again for the weight gradient). Thread-safety and errors: as functions.h and comm_functions.h.
#ifndef SLIPWAY_ENGINE_NN_PARALLEL_LINEAR_H_
#define SLIPWAY_ENGINE_NN_PARALLEL_LINEAR_H_

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"
#include "engine/nn/param_handle.h"

namespace slipway::engine::nn {

struct TensorParallel {
  comm::CommPtr group;
  bool sequence_parallel = false;
  // Communication runs beside the matrix products, some of which are made in two parts for it (results may differ in
  // rounding). Off: each operation is waited for at once.
  bool overlap = false;
};

// Into a block: what the ranks then compute from the result are parts, whose gradients are summed.
at::Tensor EnterBlock(const at::Tensor& x, const TensorParallel& tp);
// Out of a block: sums the ranks' parts. May overwrite x.
at::Tensor LeaveBlock(const at::Tensor& x, const TensorParallel& tp);

// Output features cut: x as it stands between blocks → [T, local features]. A null bias handle means no bias.
at::Tensor ColumnParallelLinear(const at::Tensor& x, const ParamPtr& weight, const ParamPtr& bias,
                                const TensorParallel& tp);
// Input features cut: x [T, local features] → as it stands between blocks.
at::Tensor RowParallelLinear(const at::Tensor& x, const ParamPtr& weight, const TensorParallel& tp);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_PARALLEL_LINEAR_H_
