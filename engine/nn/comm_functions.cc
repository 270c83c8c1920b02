#include "engine/nn/comm_functions.h"

#include <ATen/ATen.h>

#include "engine/nn/function_support.h"

namespace slipway::engine::nn {
namespace {

using comm::CommPtr;
using comm::ReduceOp;
using internal::AutogradContext;
using internal::variable_list;

// What is done to a tensor, on the way forward or back. Each returns a new tensor and leaves its argument alone.
at::Tensor Identity(const at::Tensor& x, comm::Communicator&) { return x; }

at::Tensor AllReduce(const at::Tensor& x, comm::Communicator& group) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.AllReduce(sum, ReduceOp::kSum)->Wait();
  return sum;
}

at::Tensor GatherRows(const at::Tensor& x, comm::Communicator& group) {
  at::Tensor all = at::empty({group.size() * x.size(0), x.size(1)}, x.options());
  group.AllGather(all, x.contiguous())->Wait();
  return all;
}

at::Tensor ReduceScatterRows(const at::Tensor& x, comm::Communicator& group) {
  TORCH_CHECK(x.size(0) % group.size() == 0, x.size(0), " tokens do not divide over ", group.size(), " ranks of group ",
              group.name());
  at::Tensor part = at::empty({x.size(0) / group.size(), x.size(1)}, x.options());
  group.ReduceScatter(part, x.contiguous(), ReduceOp::kSum)->Wait();
  return part;
}

at::Tensor OwnSlice(const at::Tensor& x, comm::Communicator& group, int64_t dim) {
  TORCH_CHECK(x.size(dim) % group.size() == 0, "dimension ", dim, " of ", x.sizes(), " does not divide over ",
              group.size(), " ranks of group ", group.name());
  const int64_t extent = x.size(dim) / group.size();
  return x.narrow(dim, group.rank() * extent, extent).clone(at::MemoryFormat::Contiguous);
}

at::Tensor OwnRows(const at::Tensor& x, comm::Communicator& group) { return OwnSlice(x, group, 0); }
at::Tensor OwnColumns(const at::Tensor& x, comm::Communicator& group) { return OwnSlice(x, group, 1); }

at::Tensor GatherColumns(const at::Tensor& x, comm::Communicator& group) {
  const at::Tensor rows = GatherRows(x, group);  // rank-major blocks of [T, local]
  return rows.view({group.size(), x.size(0), x.size(1)}).transpose(0, 1).reshape({x.size(0), -1});
}

using Step = at::Tensor (*)(const at::Tensor&, comm::Communicator&);

template <Step kForward, Step kBackward>
struct Conjugate : torch::autograd::Function<Conjugate<kForward, kBackward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const CommPtr& group) {
    at::AutoDispatchBelowADInplaceOrView guard;
    internal::SaveCall(context, group);
    return kForward(x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return {kBackward(grads[0], *internal::SavedCall<CommPtr>(context)), at::Tensor()};
  }
};

struct InPlaceReduce : torch::autograd::Function<InPlaceReduce> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, const CommPtr& group) {
    at::AutoDispatchBelowADInplaceOrView guard;
    TORCH_CHECK(x.is_contiguous(), "a row-parallel result must be contiguous");
    group->AllReduce(x, ReduceOp::kSum)->Wait();
    context->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], at::Tensor()}; }
};

template <Step kForward, Step kBackward>
at::Tensor Apply(const at::Tensor& x, const CommPtr& group) {
  return group->size() == 1 ? x : Conjugate<kForward, kBackward>::apply(x, group);
}

}  // namespace

at::Tensor CopyToGroup(const at::Tensor& x, const CommPtr& group) { return Apply<Identity, AllReduce>(x, group); }
at::Tensor ReduceFromGroup(const at::Tensor& x, const CommPtr& group) {
  return group->size() == 1 ? x : InPlaceReduce::apply(x, group);
}
at::Tensor SplitFeatures(const at::Tensor& x, const CommPtr& group) {
  return Apply<OwnColumns, GatherColumns>(x, group);
}
at::Tensor GatherFeatures(const at::Tensor& x, const CommPtr& group) {
  return Apply<GatherColumns, OwnColumns>(x, group);
}
at::Tensor SplitTokens(const at::Tensor& x, const CommPtr& group) { return Apply<OwnRows, GatherRows>(x, group); }
at::Tensor GatherTokens(const at::Tensor& x, const CommPtr& group) {
  return Apply<GatherRows, ReduceScatterRows>(x, group);
}
at::Tensor MergeTokens(const at::Tensor& x, const CommPtr& group) { return Apply<GatherRows, OwnRows>(x, group); }
at::Tensor ReduceScatterTokens(const at::Tensor& x, const CommPtr& group) {
  return Apply<ReduceScatterRows, GatherRows>(x, group);
}

}  // namespace slipway::engine::nn
