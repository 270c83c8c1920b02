// Output layer and cross-entropy in one, over a vocabulary that may be cut over ranks.
#include <algorithm>

#include "engine/nn/comm_functions.h"
#include "engine/nn/function_support.h"
#include "engine/nn/functions.h"
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

struct LossCall {
  ParamPtr weight;
  VocabularyOptions options;
  at::Tensor last_logits;  // of the last chunk; the backward moves it out
};

// This rank's rows of the vocabulary.
struct Share {
  int64_t first_row;
  int64_t valid_rows;  // the rest of the local weight is padding
  int64_t chunk_tokens;
};

Share ShareOf(const VocabularyOptions& options, int64_t local_rows, int64_t tokens) {
  const int64_t first_row = options.group->rank() * local_rows;
  const int64_t valid_rows = std::clamp<int64_t>(options.vocab_size - first_row, 0, local_rows);
  const int64_t fitting = options.chunk_elements / std::max<int64_t>(local_rows, 1);
  return {first_row, valid_rows, std::clamp<int64_t>(fitting, 1, tokens)};
}

// Turns each rank's log-sum-exp over its own columns into the whole vocabulary's, and its targets (0 where the label is
// not its own) likewise.
void CombineOverVocabulary(comm::Communicator& group, at::Tensor& lse, at::Tensor& target) {
  at::Tensor highest = lse.clone();
  group.AllReduce(highest, comm::ReduceOp::kMax)->Wait();
  at::Tensor sums = at::stack({at::exp(lse - highest), target});
  group.AllReduce(sums, comm::ReduceOp::kSum)->Wait();
  lse = highest + at::log(sums[0]);
  target = sums[1].contiguous();
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& labels,
                            const at::Tensor& weights, const LossCall& call, const std::optional<at::Tensor>&) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const AcquiredWeight weight(call.weight);
    const int64_t tokens = x.size(0);
    const Share share = ShareOf(call.options, weight->size(0), tokens);
    const int64_t chunk = share.chunk_tokens;
    const at::Tensor rows = weight->narrow(0, 0, share.valid_rows);
    std::vector<at::Tensor> lses, targets;
    at::Tensor logits;
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
      const int64_t count = std::min(chunk, tokens - begin);
      logits = at::Tensor();  // free the last chunk's before the next is made
      logits = ops::Logits(x.narrow(0, begin, count), rows);
      auto [lse, target] = ops::CrossEntropy(logits, labels.narrow(0, begin, count), share.first_row);
      lses.push_back(std::move(lse));
      targets.push_back(std::move(target));
    }
    at::Tensor lse = at::cat(lses), target = at::cat(targets);
    CombineOverVocabulary(*call.options.group, lse, target);
    SaveCall(context, LossCall{call.weight, call.options, std::move(logits)});
    context->save_for_backward({x, labels, weights, lse});
    return at::where(weights != 0, weights * (lse - target), at::zeros({}, lse.options())).sum();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto& call = SavedCall<LossCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &labels = saved[1], &lse = saved[3];
    const at::Tensor scale = saved[2].to(lse.scalar_type()) * grads[0].to(lse.scalar_type());
    const AcquiredWeight weight(call.weight);
    const int64_t tokens = x.size(0);
    const Share share = ShareOf(call.options, weight->size(0), tokens);
    const int64_t chunk = share.chunk_tokens;
    const at::Tensor rows = weight->narrow(0, 0, share.valid_rows);
    at::Tensor dx = at::empty_like(x);
    const auto backward_chunk = [&](int64_t begin, at::Tensor logits, const at::Tensor* main_grad, bool accumulate) {
      const int64_t count = logits.size(0);
      const at::Tensor dlogits =
          ops::CrossEntropyBackward(std::move(logits), labels.narrow(0, begin, count), lse.narrow(0, begin, count),
                                    scale.narrow(0, begin, count), share.first_row, x.scalar_type());
      at::Tensor chunk_dx = dx.narrow(0, begin, count);
      at::mm_out(chunk_dx, dlogits, rows);
      if (main_grad != nullptr) {
        ops::MmAccumulate(main_grad->narrow(0, 0, share.valid_rows), dlogits, x.narrow(0, begin, count), accumulate);
      }
    };
    const auto backward_all = [&](const at::Tensor* main_grad, bool accumulate) {
      for (int64_t begin = (tokens - 1) / chunk * chunk; begin >= 0; begin -= chunk) {
        at::Tensor logits = std::exchange(call.last_logits, at::Tensor());
        if (!logits.defined()) logits = ops::Logits(x.narrow(0, begin, std::min(chunk, tokens - begin)), rows);
        backward_chunk(begin, std::move(logits), main_grad, accumulate);
        accumulate = true;
      }
    };
    if (internal::WantsGrad(call.weight)) {
      WriteGrad(call.weight,
                [&](const at::Tensor& main_grad, bool accumulate) { backward_all(&main_grad, accumulate); });
    } else {
      backward_all(nullptr, false);
    }
    return {context->needs_input_grad(0) ? dx : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor WholeLoss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weights, const ParamPtr& weight,
                     const VocabularyOptions& options) {
  const std::optional<at::Tensor> anchor = BeginUse(x, {weight});
  return LossFunction::apply(x, labels, weights, LossCall{weight, options, at::Tensor()}, anchor);
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& weights,
                              const ParamPtr& weight, const VocabularyOptions& options) {
  TORCH_CHECK(x.size(0) > 0 && labels.size(0) == x.size(0) && weights.size(0) == x.size(0), "loss of ", x.size(0),
              " tokens with ", labels.size(0), " labels and ", weights.size(0), " weights");
  if (x.is_cpu()) {
    at::Tensor counted = at::nonzero(weights).squeeze(1);
    if (counted.size(0) < x.size(0)) {
      // One token stays where none counts, so that every rank communicates alike and the handle sees its use end.
      if (counted.size(0) == 0) counted = at::zeros({1}, at::kLong);
      return WholeLoss(x.index_select(0, counted), labels.index_select(0, counted), weights.index_select(0, counted),
                       weight, options);
    }
  }
  return WholeLoss(x, labels, weights, weight, options);
}

at::Tensor VocabularyLogits(const at::Tensor& x, const ParamPtr& weight, const VocabularyOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor local = ops::Logits(x.detach(), *AcquiredWeight(weight));
  return GatherFeatures(local, options.group).narrow(1, 0, options.vocab_size);
}

}  // namespace slipway::engine::nn
