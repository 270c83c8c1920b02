// The differentiable operations of a layer of experts; see functions.h for the conventions.
#ifndef SLIPWAY_ENGINE_NN_MOE_FUNCTIONS_H_
#define SLIPWAY_ENGINE_NN_MOE_FUNCTIONS_H_

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/nn/param_handle.h"

namespace slipway::engine::nn {

// x [T, H] · weightᵀ [E, H] in fp32 (fp64 for fp64), whatever the type of x and weight is.
at::Tensor RouterLogits(const at::Tensor& x, const ParamPtr& weight);

// Rows of x [R, in], group after group as ops::GroupedMm has them, times their group's matrix. The weight's rows are
// those of all groups, one after another: [G · out, in], with G = ends.size(0). An expert that got no row gets a zero
// gradient.
at::Tensor GroupedLinear(const at::Tensor& x, const ParamPtr& weight, const at::Tensor& ends);

// Which rows make which, between two orders of rows: rows[i] is the row of the first order that row i of the second
// copies; copies[t] are the rows of the second order that copy row t of the first, −1 where there is none. Both int64,
// [n] and [T, c]. A row whose copy is not listed counts for nothing in sums; what its own value or gradient is does not
// matter then.
struct RowMap {
  at::Tensor rows;
  at::Tensor copies;
  bool empty_rows = false;  // some of `rows` may be −1: a row of zeros
};
// x [T, H] → [n, H]. Backward: each row's gradient is the sum of its copies'.
at::Tensor SpreadRows(const at::Tensor& x, const RowMap& map);
// The conjugate: y [n, H] → [T, H], each row the sum of its copies (in fp32, rounded once).
at::Tensor CollectRows(const at::Tensor& y, const RowMap& map);

// Rows to the ranks of a group by send[rank], received by receive[rank]; backward sends the gradients back.
at::Tensor ExchangeRows(const at::Tensor& x, const comm::CommPtr& group, const std::vector<int64_t>& send,
                        const std::vector<int64_t>& receive);

// x itself; its backward gives `loss` (a scalar) the gradient `scale`, however large the gradient of x is. So a loss of
// the inside of a model is trained without being carried to its end (Megatron-LM's MoEAuxLossAutoScaler).
at::Tensor AttachLoss(const at::Tensor& x, const at::Tensor& loss, double scale);

// x itself; its backward gives the handle `amount` as if that were its gradient. For what is counted, not trained: it
// is summed over micro-batches and ranks as gradients are, and a forward without a backward (evaluation, the first pass
// of recomputation) does not count.
at::Tensor AttachCount(const at::Tensor& x, const at::Tensor& amount, const ParamPtr& param);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_MOE_FUNCTIONS_H_
