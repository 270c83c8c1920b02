#include "engine/nn/recompute.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>
#include <utility>

#include "engine/nn/function_support.h"

namespace slipway::engine::nn {
namespace {

using internal::AutogradContext;
using internal::variable_list;
using Call = std::shared_ptr<const Recomputed>;

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Call& call,
                            const std::optional<at::Tensor>&) {
    internal::SaveCall(context, call);
    context->save_for_backward({x});
    return (*call)(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor x = context->get_saved_variables()[0].detach();
    x.set_requires_grad(context->needs_input_grad(0));
    at::Tensor y;
    {
      const at::AutoGradMode with_graph(true);
      y = (*internal::SavedCall<Call>(context))(x);
    }
    if (y.requires_grad()) y.backward(grads[0]);
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

// Memory taken from a tensor and given back.
struct Discarded {
  at::Tensor output;
  size_t bytes;
  std::function<at::Tensor()> remake;

  c10::StorageImpl& Storage() const { return *output.storage().unsafeGetStorageImpl(); }

  void Free() {
    Storage().set_data_ptr_noswap(at::DataPtr(nullptr, output.device()));
    Storage().set_nbytes(0);
  }

  void Refill() {
    if (remake == nullptr) return;
    const at::NoGradGuard no_grad;
    const at::Tensor made = std::exchange(remake, nullptr)();
    TORCH_CHECK(made.storage().nbytes() == bytes, "a value of ", bytes, " bytes was computed again as one of ",
                made.storage().nbytes());
    c10::StorageImpl& from = *made.storage().unsafeGetStorageImpl();
    Storage().set_data_ptr_noswap(from.set_data_ptr(at::DataPtr(nullptr, output.device())));
    Storage().set_nbytes(bytes);
    from.set_nbytes(0);
    output = at::Tensor();
  }
};

}  // namespace

at::Tensor Recompute(const at::Tensor& x, Recomputed forward) {
  if (!at::GradMode::is_enabled()) return forward(x);
  // Parameters inside may want a backward that x does not.
  std::optional<at::Tensor> anchor;
  if (!x.requires_grad()) anchor = at::empty({0}).requires_grad_();
  return RecomputeFunction::apply(x, std::make_shared<const Recomputed>(std::move(forward)), anchor);
}

void DiscardUntilBackward(const at::Tensor& output, const at::Tensor& reader_output,
                          std::function<at::Tensor()> remake) {
  if (!reader_output.requires_grad()) return;
  const auto discarded =
      std::make_shared<Discarded>(Discarded{output.detach(), output.storage().nbytes(), std::move(remake)});
  discarded->Free();
  reader_output.register_hook([discarded](const at::Tensor&) { discarded->Refill(); });
}

}  // namespace slipway::engine::nn
