#include "engine/nn/parallel_linear.h"

#include <utility>

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

Arriving GatherAllTokens(const at::Tensor& x, const TensorParallel& tp, bool overlap) {
  if (!tp.sequence_parallel) return {x, nullptr};
  at::Tensor all = at::empty({tp.group->size() * x.size(0), x.size(1)}, x.options());
  WorkPtr work = tp.group->AllGather(all, x.contiguous());
  return Begin(std::move(all), std::move(work), overlap);
}

// partial: this rank's part of the gradient of all tokens; it must live until the sum is there.
Arriving SumGradients(const at::Tensor& partial, const TensorParallel& tp) {
  if (!tp.sequence_parallel) return Begin(partial, tp.group->AllReduce(partial, ReduceOp::kSum), tp.overlap);
  at::Tensor own = at::empty({partial.size(0) / tp.group->size(), partial.size(1)}, partial.options());
  WorkPtr work = tp.group->ReduceScatter(own, partial, ReduceOp::kSum);
  return Begin(std::move(own), std::move(work), tp.overlap);
}

struct ColumnCall {
  ParamPtr weight, bias;
  TensorParallel tp;
};

struct ColumnFunction : torch::autograd::Function<ColumnFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ColumnCall& call,
                            const std::optional<at::Tensor>&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    context->save_for_backward({x});
    const at::Tensor all = GatherAllTokens(x, call.tp, /*overlap=*/false).tensor;
    const AcquiredWeight weight(call.weight), bias(call.bias);
    return call.bias ? at::addmm(*bias, all, weight->t()) : at::mm(all, weight->t());
  }
  // The tokens travel while the input's gradient is computed, that gradient while the weight's is.
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ColumnCall>(context);
    const at::Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    Arriving all;
    if (WantsGrad(call.weight)) all = GatherAllTokens(x, call.tp, call.tp.overlap);
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
  return ColumnFunction::apply(x, ColumnCall{weight, bias, tp}, anchor);
}

at::Tensor RowParallelLinear(const at::Tensor& x, const ParamPtr& weight, const TensorParallel& tp) {
  return LeaveBlock(Linear(x, weight), tp);
}

}  // namespace slipway::engine::nn
