// Communication that gradients pass through: conjugate pairs. All that is differentiable and crosses ranks is here.
//
//   function            forward               backward            where
//   CopyToGroup         identity              all-reduce (sum)    before a column-parallel product
//   ReduceFromGroup     all-reduce (sum)      identity            after a row-parallel product
//   SplitFeatures       own slice of dim 1    all-gather          into a row-parallel product
//   GatherFeatures      all-gather on dim 1   own slice           out of a column-parallel product
//   SplitTokens         own slice of dim 0    all-gather          into sequence parallelism
//   GatherTokens        all-gather on dim 0   reduce-scatter      before a column-parallel product
//   MergeTokens         all-gather on dim 0   own slice           out of sequence parallelism, into what every rank
//   computes alike ReduceScatterTokens reduce-scatter dim 0  all-gather          after a row-parallel product
//
// GatherTokens is for readers whose gradients are parts that must be summed, MergeTokens for readers that all compute
// the same. A group of one rank gives the input back. Sizes must divide by the group. Errors: CommError, c10::Error.
#ifndef SLIPWAY_ENGINE_NN_COMM_FUNCTIONS_H_
#define SLIPWAY_ENGINE_NN_COMM_FUNCTIONS_H_

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"

namespace slipway::engine::nn {

at::Tensor CopyToGroup(const at::Tensor& x, const comm::CommPtr& group);
// In place: x must be the result of an operation that does not need it again.
at::Tensor ReduceFromGroup(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor SplitFeatures(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor GatherFeatures(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor SplitTokens(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor GatherTokens(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor MergeTokens(const at::Tensor& x, const comm::CommPtr& group);
at::Tensor ReduceScatterTokens(const at::Tensor& x, const comm::CommPtr& group);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_COMM_FUNCTIONS_H_
