#include "engine/nn/parallel_linear.h"

#include <utility>
#include <vector>

#include "engine/nn/comm_functions.h"
#include "engine/nn/function_support.h"
#include "engine/nn/functions.h"
#include "engine/ops/ops.h"

namespace slipway::engine::nn {
namespace {

using comm::ReduceOp;
using comm::WorkPtr;
using internal::AcquiredWeight;
using internal::AutogradContext;
using internal::BeginUse;
using internal::SaveCall;
using internal::SavedCall;
using internal::variable_list;
using internal::WantsGrad;
using internal::WriteGrad;

// A tensor that an operation of the group is filling.
struct Arriving {
  at::Tensor tensor;
  WorkPtr work;  // null: it is there

  void Wait() {
    if (work != nullptr) std::exchange(work, nullptr)->Wait();
  }
};

Arriving Begin(at::Tensor tensor, WorkPtr work, bool overlap) {
  Arriving arriving{std::move(tensor), std::move(work)};
  if (!overlap) arriving.Wait();
  return arriving;
}

// x as it stands between blocks.
Arriving GatherAllTokens(const at::Tensor& x, const TensorParallel& tp) {
  if (!tp.sequence_parallel) return {x, nullptr};
  at::Tensor all = at::empty({tp.group->size() * x.size(0), x.size(1)}, x.options());
  WorkPtr work = tp.group->AllGather(all, x.contiguous());
  return Begin(std::move(all), std::move(work), tp.overlap);
}

// partial: this rank's part of the gradient of all tokens; it must live until the sum is there.
Arriving SumGradients(const at::Tensor& partial, const TensorParallel& tp) {
  if (!tp.sequence_parallel) return Begin(partial, tp.group->AllReduce(partial, ReduceOp::kSum), tp.overlap);
  at::Tensor own = at::empty({partial.size(0) / tp.group->size(), partial.size(1)}, partial.options());
  WorkPtr work = tp.group->ReduceScatter(own, partial, ReduceOp::kSum);
  return Begin(std::move(own), std::move(work), tp.overlap);
}

// All tokens · matrix (+ bias). While the other ranks' tokens are on their way, the product of one's own is computed.
at::Tensor ProductOfAll(const at::Tensor& own, Arriving& all, const at::Tensor& matrix, const ParamPtr& bias_handle,
                        const TensorParallel& tp) {
  const AcquiredWeight bias(bias_handle);
  at::Tensor out = at::empty({all.tensor.size(0), matrix.size(1)}, own.options());
  const auto compute = [&](const at::Tensor& rows, int64_t begin) {
    if (rows.size(0) == 0) return;
    at::Tensor part = out.narrow(0, begin, rows.size(0));
    bias_handle ? at::addmm_out(part, *bias, rows, matrix) : at::mm_out(part, rows, matrix);
  };
  if (all.work == nullptr) {
    compute(all.tensor, 0);
    return out;
  }
  const int64_t begin = tp.group->rank() * own.size(0), end = begin + own.size(0);
  compute(own, begin);
  all.Wait();
  compute(all.tensor.narrow(0, 0, begin), 0);
  compute(all.tensor.narrow(0, end, all.tensor.size(0) - end), end);
  return out;
}

// x · matrix, summed over the ranks, as it stands between blocks. With overlap in two halves of every rank's tokens:
// the sum of the first runs beside the product for the second.
at::Tensor SumOfProducts(const at::Tensor& x, const at::Tensor& matrix, const TensorParallel& tp) {
  const int64_t ranks = tp.sequence_parallel ? tp.group->size() : 1, tokens = x.size(0) / ranks;
  TORCH_CHECK(x.size(0) == tokens * ranks, x.size(0), " tokens do not divide over ", ranks, " ranks of group ",
              tp.group->name());
  const int64_t halves = tp.overlap && tokens % 2 == 0 && tokens > 0 ? 2 : 1, count = tokens / halves;
  at::Tensor sum = at::empty({tokens, matrix.size(1)}, x.options());
  std::vector<Arriving> parts;  // of each half, the tokens of one rank after the other
  for (int64_t half = 0; half < halves; ++half) {
    at::Tensor own = sum.narrow(0, half * count, count);
    at::Tensor part = tp.sequence_parallel ? at::empty({ranks * count, matrix.size(1)}, x.options()) : own;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      at::Tensor rows = part.narrow(0, rank * count, count);
      at::mm_out(rows, x.narrow(0, rank * tokens + half * count, count), matrix);
    }
    WorkPtr work = tp.sequence_parallel ? tp.group->ReduceScatter(own, part, ReduceOp::kSum)
                                        : tp.group->AllReduce(own, ReduceOp::kSum);
    parts.push_back(Begin(std::move(part), std::move(work), tp.overlap));
  }
  for (Arriving& part : parts) part.Wait();
  return sum;
}

struct ParallelCall {
  ParamPtr weight, bias;
  TensorParallel tp;
};

struct ColumnFunction : torch::autograd::Function<ColumnFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ParallelCall& call,
                            const std::optional<at::Tensor>&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({x});
    Arriving all = GatherAllTokens(x, call.tp);
    return ProductOfAll(x, all, AcquiredWeight(call.weight)->t(), call.bias, call.tp);
  }
  // The tokens travel while the input's gradient is computed, that gradient while the weight's is.
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ParallelCall>(context);
    const at::Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    Arriving all;
    if (WantsGrad(call.weight)) all = GatherAllTokens(x, call.tp);
    at::Tensor partial;
    Arriving dx;
    if (context->needs_input_grad(0)) {
      partial = at::mm(dy, *AcquiredWeight(call.weight));
      dx = SumGradients(partial, call.tp);
    }
    all.Wait();
    WriteGrad(call.weight, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::MmAccumulate(main_grad, dy, all.tensor, accumulate);
    });
    WriteGrad(call.bias, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::BiasGradAccumulate(main_grad, dy, accumulate);
    });
    dx.Wait();
    return {dx.tensor, at::Tensor(), at::Tensor()};
  }
};

struct RowFunction : torch::autograd::Function<RowFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ParallelCall& call,
                            const std::optional<at::Tensor>&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({x});
    return SumOfProducts(x, AcquiredWeight(call.weight)->t(), call.tp);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ParallelCall>(context);
    const at::Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    Arriving all = GatherAllTokens(dy, call.tp);
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = ProductOfAll(dy, all, *AcquiredWeight(call.weight), {}, call.tp);
    all.Wait();
    WriteGrad(call.weight, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::MmAccumulate(main_grad, all.tensor, x, accumulate);
    });
    return {dx, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor EnterBlock(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence_parallel ? GatherTokens(x, tp.group) : CopyToGroup(x, tp.group);
}

at::Tensor LeaveBlock(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence_parallel ? ReduceScatterTokens(x, tp.group) : ReduceFromGroup(x, tp.group);
}

at::Tensor ColumnParallelLinear(const at::Tensor& x, const ParamPtr& weight, const ParamPtr& bias,
                                const TensorParallel& tp) {
  if (tp.group->size() == 1) return Linear(x, weight, bias);
  const std::optional<at::Tensor> anchor = BeginUse(x, {weight, bias});
  return ColumnFunction::apply(x, ParallelCall{weight, bias, tp}, anchor);
}

at::Tensor RowParallelLinear(const at::Tensor& x, const ParamPtr& weight, const TensorParallel& tp) {
  if (tp.group->size() == 1) return Linear(x, weight);
  const std::optional<at::Tensor> anchor = BeginUse(x, {weight});
  return RowFunction::apply(x, ParallelCall{weight, {}, tp}, anchor);
}

}  // namespace slipway::engine::nn
