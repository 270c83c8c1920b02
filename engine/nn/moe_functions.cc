#include "engine/nn/moe_functions.h"

#include <ATen/ATen.h>

#include "engine/nn/function_support.h"
#include "engine/ops/ops.h"

namespace slipway::engine::nn {
namespace {

using internal::AcquiredWeight;
using internal::AutogradContext;
using internal::BeginUse;
using internal::SaveCall;
using internal::SavedCall;
using internal::variable_list;
using internal::WriteGrad;
using Anchor = std::optional<at::Tensor>;

struct RouterFunction : torch::autograd::Function<RouterFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ParamPtr& weight, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, weight);
    context->save_for_backward({x});
    return ops::Logits(x, *AcquiredWeight(weight));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& weight = SavedCall<ParamPtr>(context);
    const at::Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = at::mm(dy, AcquiredWeight(weight)->to(dy.scalar_type())).to(x.scalar_type());
    }
    WriteGrad(weight, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::MmAccumulate(main_grad, dy, x.to(dy.scalar_type()), accumulate);
    });
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// The groups' matrices of a weight that holds them one after another.
at::Tensor ByGroup(const at::Tensor& weight, int64_t groups) {
  TORCH_CHECK(weight.dim() == 2 && weight.size(0) % groups == 0, "a weight of ", weight.sizes(), " does not hold ",
              groups, " experts");
  return weight.view({groups, weight.size(0) / groups, weight.size(1)});
}

struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& ends,
                            const ParamPtr& weight, const Anchor&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, weight);
    context->save_for_backward({x, ends});
    return ops::GroupedMm(x, ByGroup(*AcquiredWeight(weight), ends.size(0)), ends, /*transpose=*/true);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& weight = SavedCall<ParamPtr>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &ends = saved[1], dy = grads[0].contiguous();
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = ops::GroupedMm(dy, ByGroup(*AcquiredWeight(weight), ends.size(0)), ends, /*transpose=*/false);
    }
    WriteGrad(weight, [&](const at::Tensor& main_grad, bool accumulate) {
      ops::GroupedMmAccumulate(ByGroup(main_grad, ends.size(0)), dy, x, ends, accumulate);
    });
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor Spread(const at::Tensor& x, const at::Tensor& rows, bool empty_rows) {
  if (!empty_rows) return x.index_select(0, rows);
  return x.index_select(0, rows.clamp_min(0)).masked_fill_((rows < 0).unsqueeze(1), 0);
}

at::Tensor Collect(const at::Tensor& y, const at::Tensor& copies) {
  const int64_t count = copies.size(0), each = copies.size(1);
  std::vector<int64_t> shape = y.sizes().vec();
  shape[0] = count;
  if (y.size(0) == 0 || each == 0) return at::zeros(shape, y.options());
  const at::Tensor index = copies.reshape(-1);
  // Rows that belong to nobody may hold anything, so what is not wanted is replaced, not multiplied by zero.
  at::Tensor picked = y.index_select(0, index.clamp_min(0)).masked_fill_((index < 0).unsqueeze(1), 0);
  return each == 1 ? picked : picked.view({count, each, y.size(1)}).sum(1);
}

struct SpreadFunction : torch::autograd::Function<SpreadFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& rows,
                            const at::Tensor& copies, bool empty_rows) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({copies});
    return Spread(x, rows, empty_rows);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return {Collect(grads[0], context->get_saved_variables()[0]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct CollectFunction : torch::autograd::Function<CollectFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& rows,
                            const at::Tensor& copies, bool empty_rows) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["empty_rows"] = empty_rows;
    context->save_for_backward({rows});
    return Collect(y, copies);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return {Spread(grads[0], context->get_saved_variables()[0], context->saved_data["empty_rows"].toBool()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct ExchangeCall {
  comm::CommPtr group;
  std::vector<int64_t> send, receive;
};

at::Tensor Exchange(const at::Tensor& x, const ExchangeCall& call, bool back) {
  const std::vector<int64_t>& in = back ? call.receive : call.send;
  const std::vector<int64_t>& out = back ? call.send : call.receive;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = 0;
  for (const int64_t rows : out) shape[0] += rows;
  at::Tensor received = at::empty(shape, x.options());
  call.group->AllToAll(received, x.contiguous(), out, in)->Wait();
  return received;
}

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ExchangeCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    SaveCall(context, call);
    return Exchange(x, call, /*back=*/false);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return {Exchange(grads[0], SavedCall<ExchangeCall>(context), /*back=*/true), at::Tensor()};
  }
};

struct AttachLossFunction : torch::autograd::Function<AttachLossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& loss, double scale) {
    context->saved_data["scale"] = scale;
    context->save_for_backward({loss});
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor loss = context->get_saved_variables()[0];
    return {grads[0], at::full_like(loss, context->saved_data["scale"].toDouble()), at::Tensor()};
  }
};

struct AttachCountFunction : torch::autograd::Function<AttachCountFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& amount,
                            const ParamPtr& param) {
    SaveCall(context, param);
    context->save_for_backward({amount});
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor amount = context->get_saved_variables()[0];
    WriteGrad(SavedCall<ParamPtr>(context), [&](const at::Tensor& main_grad, bool accumulate) {
      if (accumulate) {
        main_grad.add_(amount);
      } else {
        main_grad.copy_(amount);
      }
    });
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor RouterLogits(const at::Tensor& x, const ParamPtr& weight) {
  const Anchor anchor = BeginUse(x, {weight});
  return RouterFunction::apply(x, weight, anchor);
}

at::Tensor GroupedLinear(const at::Tensor& x, const ParamPtr& weight, const at::Tensor& ends) {
  const Anchor anchor = BeginUse(x, {weight});
  return GroupedLinearFunction::apply(x, ends, weight, anchor);
}

at::Tensor SpreadRows(const at::Tensor& x, const RowMap& map) {
  return SpreadFunction::apply(x, map.rows, map.copies, map.empty_rows);
}

at::Tensor CollectRows(const at::Tensor& y, const RowMap& map) {
  return CollectFunction::apply(y, map.rows, map.copies, map.empty_rows);
}

at::Tensor ExchangeRows(const at::Tensor& x, const comm::CommPtr& group, const std::vector<int64_t>& send,
                        const std::vector<int64_t>& receive) {
  return ExchangeFunction::apply(x, ExchangeCall{group, send, receive});
}

at::Tensor AttachLoss(const at::Tensor& x, const at::Tensor& loss, double scale) {
  return AttachLossFunction::apply(x, loss, scale);
}

at::Tensor AttachCount(const at::Tensor& x, const at::Tensor& amount, const ParamPtr& param) {
  if (!at::GradMode::is_enabled() || !internal::WantsGrad(param) || !x.requires_grad()) return x;
  param->RegisterUse();
  return AttachCountFunction::apply(x, amount, param);
}

}  // namespace slipway::engine::nn
