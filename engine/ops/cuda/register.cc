// Registers our CUDA kernels, and what ATen already does well on CUDA, as overrides of the `slipway` operations.
// Loaded by the worker before torch touches the device.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <type_traits>

#include "engine/ops/cuda/attention.h"
#include "engine/ops/cuda/grouped.h"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops::cuda {
namespace {

cudaStream_t Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Our kernels are made for bf16 and fp32, contiguous, with rows of whole 16-byte vectors.
bool IsBf16(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat,
              "slipway on CUDA computes in bfloat16 or float32, not in ", x.scalar_type());
  TORCH_CHECK(x.is_contiguous(), "slipway on CUDA takes contiguous tensors");
  return x.scalar_type() == at::kBFloat16;
}

int64_t RowSize(const at::Tensor& x) {
  const int64_t n = x.size(-1);
  TORCH_CHECK(n % (16 / x.element_size()) == 0, "slipway on CUDA takes rows that are a multiple of 16 bytes; got ", n,
              " elements of ", x.scalar_type());
  return n;
}

void CheckLaunch() { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

const void* DataOrNull(const OptionalTensor& x) { return x.has_value() ? x->const_data_ptr() : nullptr; }

at::Tensor FloatScratch(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

std::tuple<at::Tensor, at::Tensor> RmsNormCuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor y = at::empty_like(x), rstd = FloatScratch(x, {x.size(0)});
  RmsNormForward({.bf16 = IsBf16(x),
                  .x = x.const_data_ptr(),
                  .residual = nullptr,
                  .sum = nullptr,
                  .weight = weight.const_data_ptr(),
                  .y = y.mutable_data_ptr(),
                  .rstd = rstd.mutable_data_ptr<float>(),
                  .rows = x.size(0),
                  .n = RowSize(x),
                  .epsilon = static_cast<float>(eps)},
                 Stream());
  CheckLaunch();
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AddRmsNormCuda(const at::Tensor& residual, const at::Tensor& y,
                                                              const at::Tensor& weight, double eps) {
  at::Tensor sum = at::empty_like(y), normed = at::empty_like(y), rstd = FloatScratch(y, {y.size(0)});
  RmsNormForward({.bf16 = IsBf16(y),
                  .x = y.const_data_ptr(),
                  .residual = residual.const_data_ptr(),
                  .sum = sum.mutable_data_ptr(),
                  .weight = weight.const_data_ptr(),
                  .y = normed.mutable_data_ptr(),
                  .rstd = rstd.mutable_data_ptr<float>(),
                  .rows = y.size(0),
                  .n = RowSize(y),
                  .epsilon = static_cast<float>(eps)},
                 Stream());
  CheckLaunch();
  return {sum, normed, rstd};
}

at::Tensor RmsNormBackwardCuda(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& rstd, const OptionalTensor& residual_grad,
                               const OptionalTensor& weight_grad, bool accumulate) {
  at::Tensor dx = at::empty_like(x), partial;
  const int64_t rows = x.size(0);
  const int blocks = static_cast<int>(std::min<int64_t>(std::max<int64_t>(rows, 1), 132 * 8));
  if (weight_grad.has_value()) partial = FloatScratch(x, {blocks, x.size(1)});
  const bool ok =
      RmsNormBackward({.bf16 = IsBf16(x),
                       .dy = dy.const_data_ptr(),
                       .x = x.const_data_ptr(),
                       .weight = weight.const_data_ptr(),
                       .rstd = rstd.const_data_ptr<float>(),
                       .residual_grad = DataOrNull(residual_grad),
                       .dx = dx.mutable_data_ptr(),
                       .partial = partial.defined() ? partial.mutable_data_ptr<float>() : nullptr,
                       .partial_blocks = blocks,
                       .weight_grad = weight_grad.has_value() ? weight_grad->mutable_data_ptr<float>() : nullptr,
                       .accumulate = accumulate,
                       .rows = rows,
                       .n = RowSize(x)},
                      Stream());
  TORCH_CHECK(ok, "rms_norm_backward on CUDA takes rows of at most 32 KiB; got ", x.size(1), " elements");
  CheckLaunch();
  return dx;
}

RopeArgs MakeRopeArgs(const at::Tensor& qkv, const at::Tensor& positions, const at::Tensor& inverse_frequencies,
                      int64_t heads, int64_t groups) {
  const int64_t dim = qkv.size(1) / (heads + 2 * groups);
  TORCH_CHECK(dim <= 256 && dim % 2 == 0, "the rotary embedding on CUDA takes an even head size of at most 256; got ",
              dim);
  return {.bf16 = IsBf16(qkv),
          .tokens = qkv.size(0),
          .heads = static_cast<int>(heads),
          .groups = static_cast<int>(groups),
          .dim = static_cast<int>(dim),
          .positions = positions.const_data_ptr<int64_t>(),
          .inverse_frequencies = inverse_frequencies.const_data_ptr<float>()};
}

void RopeCuda(at::Tensor qkv, const at::Tensor& positions, const at::Tensor& inverse_frequencies, int64_t heads,
              int64_t groups, bool inverse) {
  RopeInPlace(MakeRopeArgs(qkv, positions, inverse_frequencies, heads, groups), qkv.mutable_data_ptr(), inverse,
              Stream());
  CheckLaunch();
}

std::tuple<at::Tensor, at::Tensor> QkNormRopeCuda(const at::Tensor& qkv, const at::Tensor& q_weight,
                                                  const at::Tensor& k_weight, double eps, const at::Tensor& positions,
                                                  const at::Tensor& inverse_frequencies, int64_t heads,
                                                  int64_t groups) {
  at::Tensor out = at::empty_like(qkv), rstd = FloatScratch(qkv, {qkv.size(0), heads + groups});
  QkNormRope({.rope = MakeRopeArgs(qkv, positions, inverse_frequencies, heads, groups),
              .qkv = qkv.const_data_ptr(),
              .q_weight = q_weight.const_data_ptr(),
              .k_weight = k_weight.const_data_ptr(),
              .rstd = rstd.mutable_data_ptr<float>(),
              .epsilon = static_cast<float>(eps)},
             out.mutable_data_ptr(), Stream());
  CheckLaunch();
  return {out, rstd};
}

at::Tensor QkNormRopeBackwardCuda(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& q_weight,
                                  const at::Tensor& k_weight, const at::Tensor& rstd, const at::Tensor& positions,
                                  const at::Tensor& inverse_frequencies, int64_t heads, int64_t groups,
                                  const OptionalTensor& q_weight_grad, bool q_accumulate,
                                  const OptionalTensor& k_weight_grad, bool k_accumulate) {
  const RopeArgs rope = MakeRopeArgs(qkv, positions, inverse_frequencies, heads, groups);
  const int blocks = QkNormRopeBackwardBlocks(std::max<int64_t>(rope.tokens, 1));
  at::Tensor dqkv = at::empty_like(qkv), partial = FloatScratch(qkv, {blocks, 2, rope.dim}),
             sums = FloatScratch(qkv, {2, rope.dim});
  QkNormRopeBackward({.rope = rope,
                      .qkv = qkv.const_data_ptr(),
                      .q_weight = q_weight.const_data_ptr(),
                      .k_weight = k_weight.const_data_ptr(),
                      .rstd = const_cast<float*>(rstd.const_data_ptr<float>()),
                      .epsilon = 0.f},
                     dout.const_data_ptr(), dqkv.mutable_data_ptr(), partial.mutable_data_ptr<float>(), Stream());
  ColumnSum(partial.const_data_ptr<float>(), blocks, 2 * rope.dim, sums.mutable_data_ptr<float>(), /*accumulate=*/false,
            Stream());
  CheckLaunch();
  const auto give = [](const OptionalTensor& target, const at::Tensor& sum, bool accumulate) {
    if (!target.has_value()) return;
    at::Tensor grad = *target;
    if (accumulate)
      grad.add_(sum);
    else
      grad.copy_(sum);
  };
  give(q_weight_grad, sums[0], q_accumulate);
  give(k_weight_grad, sums[1], k_accumulate);
  return dqkv;
}

at::Tensor SwiGluCuda(const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  at::Tensor out = at::empty({gate_up.size(0), n}, gate_up.options());
  SwiGluForward(IsBf16(gate_up), gate_up.const_data_ptr(), out.mutable_data_ptr(), gate_up.size(0), n, Stream());
  CheckLaunch();
  return out;
}

at::Tensor SwiGluBackwardCuda(const at::Tensor& dy, const at::Tensor& gate_up) {
  at::Tensor din = at::empty_like(gate_up);
  SwiGluBackward(IsBf16(gate_up), dy.const_data_ptr(), gate_up.const_data_ptr(), din.mutable_data_ptr(),
                 gate_up.size(0), dy.size(1), Stream());
  CheckLaunch();
  return din;
}

DropoutArgs MakeDropoutArgs(const at::Tensor& sample_index, const at::Tensor& positions, int64_t features, double p,
                            int64_t seed, int64_t step, int64_t site) {
  return {.sample_index = sample_index.const_data_ptr<int64_t>(),
          .positions = positions.const_data_ptr<int64_t>(),
          .tokens = sample_index.size(0),
          .features = features,
          .p = static_cast<float>(p),
          .seed = static_cast<uint64_t>(seed),
          .step = static_cast<uint64_t>(step),
          .site = static_cast<uint64_t>(site)};
}

at::Tensor DropoutMaskCuda(const at::Tensor& sample_index, const at::Tensor& positions, int64_t features, double p,
                           int64_t seed, int64_t step, int64_t site) {
  at::Tensor mask = FloatScratch(sample_index, {sample_index.size(0), features});
  DropoutMask(MakeDropoutArgs(sample_index, positions, features, p, seed, step, site), mask.mutable_data_ptr<float>(),
              Stream());
  CheckLaunch();
  return mask;
}

at::Tensor AddDropoutCuda(const at::Tensor& residual, const at::Tensor& y, const at::Tensor& sample_index,
                          const at::Tensor& positions, double p, int64_t seed, int64_t step, int64_t site) {
  at::Tensor out = at::empty_like(y);
  DropoutApply(IsBf16(y), MakeDropoutArgs(sample_index, positions, y.size(1), p, seed, step, site),
               residual.const_data_ptr(), y.const_data_ptr(), out.mutable_data_ptr(), Stream());
  CheckLaunch();
  return out;
}

at::Tensor DropoutBackwardCuda(const at::Tensor& dy, const at::Tensor& sample_index, const at::Tensor& positions,
                               double p, int64_t seed, int64_t step, int64_t site) {
  at::Tensor out = at::empty_like(dy);
  DropoutApply(IsBf16(dy), MakeDropoutArgs(sample_index, positions, dy.size(1), p, seed, step, site), nullptr,
               dy.const_data_ptr(), out.mutable_data_ptr(), Stream());
  CheckLaunch();
  return out;
}

at::Tensor EmbeddingCuda(const at::Tensor& weight, const at::Tensor& ids, int64_t first_row) {
  at::Tensor out = at::empty({ids.size(0), weight.size(1)}, weight.options());
  EmbeddingForward(IsBf16(weight), weight.const_data_ptr(), ids.const_data_ptr<int64_t>(), first_row, weight.size(0),
                   out.mutable_data_ptr(), ids.size(0), RowSize(weight), Stream());
  CheckLaunch();
  return out;
}

void EmbeddingBackwardCuda(const at::Tensor& dy, const at::Tensor& ids, int64_t first_row, at::Tensor weight_grad,
                           bool accumulate) {
  if (!accumulate) weight_grad.zero_();
  const auto [sorted, order] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  EmbeddingBackward(IsBf16(dy), dy.const_data_ptr(), sorted.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>(),
                    first_row, weight_grad.size(0), weight_grad.mutable_data_ptr<float>(), ids.size(0), dy.size(1),
                    Stream());
  CheckLaunch();
}

at::Tensor LogitsCuda(const at::Tensor& x, const at::Tensor& weight) {
  return IsBf16(x) ? at::mm(x, weight.t(), at::kFloat) : at::mm(x, weight.t());
}

std::tuple<at::Tensor, at::Tensor> CrossEntropyCuda(const at::Tensor& logits, const at::Tensor& labels,
                                                    int64_t first_row) {
  at::Tensor lse = at::empty({logits.size(0)}, logits.options()), target = at::empty_like(lse);
  CrossEntropyForward(logits.const_data_ptr<float>(), labels.const_data_ptr<int64_t>(), first_row,
                      lse.mutable_data_ptr<float>(), target.mutable_data_ptr<float>(), logits.size(0), logits.size(1),
                      Stream());
  CheckLaunch();
  return {lse, target};
}

at::Tensor CrossEntropyBackwardCuda(at::Tensor logits, const at::Tensor& labels, const at::Tensor& lse,
                                    const at::Tensor& scale, int64_t first_row, at::ScalarType dtype) {
  at::Tensor out = dtype == at::kFloat ? logits : at::empty(logits.sizes(), logits.options().dtype(dtype));
  CrossEntropyBackward(IsBf16(out), logits.const_data_ptr<float>(), labels.const_data_ptr<int64_t>(),
                       lse.const_data_ptr<float>(), scale.const_data_ptr<float>(), first_row, out.mutable_data_ptr(),
                       logits.size(0), logits.size(1), Stream());
  CheckLaunch();
  return out;
}

// cuBLAS accumulates in fp32 and writes fp32 straight into the main gradient.
void MmAccumulateCuda(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  const bool bf16 = IsBf16(dy);
  if (accumulate) {
    if (bf16)
      at::addmm_out(main_grad, main_grad, dy.t(), x, at::kFloat, 1, 1);
    else
      at::addmm_out(main_grad, main_grad, dy.t(), x);
  } else if (bf16) {
    at::mm_out(main_grad, dy.t(), x, at::kFloat);
  } else {
    at::mm_out(main_grad, dy.t(), x);
  }
}

void BiasGradAccumulateCuda(at::Tensor main_grad, const at::Tensor& dy, bool accumulate) {
  const at::Tensor sum = at::sum(dy, at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat);
  if (accumulate)
    main_grad.add_(sum);
  else
    main_grad.copy_(sum);
}

at::Tensor SumSquaresCuda(const at::Tensor& x) {
  at::Tensor out = at::empty({}, x.options().dtype(at::kDouble));
  const at::Tensor partial = at::empty({SquareSumBlocks(x.numel())}, out.options());
  SquareSum(x.const_data_ptr<float>(), x.numel(), partial.mutable_data_ptr<double>(), out.mutable_data_ptr<double>(),
            Stream());
  CheckLaunch();
  return out;
}

void AdamWCuda(at::Tensor master, at::Tensor exp_avg, at::Tensor exp_avg_sq, const at::Tensor& grad,
               const OptionalTensor& weights, const at::Tensor& t, const at::Tensor& grad_scale, const at::Tensor& skip,
               double lr, double beta1, double beta2, double eps, double weight_decay) {
  TORCH_CHECK(master.numel() % 4 == 0, "adamw_ on CUDA takes slices of a multiple of 4 elements; got ", master.numel());
  AdamW({.master = master.mutable_data_ptr<float>(),
         .exp_avg = exp_avg.mutable_data_ptr<float>(),
         .exp_avg_sq = exp_avg_sq.mutable_data_ptr<float>(),
         .grad = grad.const_data_ptr<float>(),
         .weights = weights.has_value() ? weights->mutable_data_ptr() : nullptr,
         .weights_bf16 = weights.has_value() && IsBf16(*weights),
         .n = master.numel(),
         .lr = lr,
         .beta1 = beta1,
         .beta2 = beta2,
         .epsilon = eps,
         .weight_decay = weight_decay,
         .t = t.const_data_ptr<float>(),
         .grad_scale = grad_scale.const_data_ptr<float>(),
         .skip = skip.const_data_ptr<float>()},
        Stream());
  CheckLaunch();
}

// A function that differs from the operation's signature would end the process while the plug-in is loaded; better
// here.
#define SLIPWAY_REGISTER(name, function, Signature)             \
  static_assert(std::is_same_v<decltype(function), Signature>); \
  m.impl(name, TORCH_FN(function))

}  // namespace

TORCH_LIBRARY_IMPL(slipway, CUDA, m) {
  SLIPWAY_REGISTER("rms_norm", RmsNormCuda, RmsNormFn);
  SLIPWAY_REGISTER("add_rms_norm", AddRmsNormCuda, AddRmsNormFn);
  SLIPWAY_REGISTER("rms_norm_backward", RmsNormBackwardCuda, RmsNormBackwardFn);
  SLIPWAY_REGISTER("rope_", RopeCuda, RopeFn);
  SLIPWAY_REGISTER("qk_norm_rope", QkNormRopeCuda, QkNormRopeFn);
  SLIPWAY_REGISTER("qk_norm_rope_backward", QkNormRopeBackwardCuda, QkNormRopeBackwardFn);
  SLIPWAY_REGISTER("swiglu", SwiGluCuda, SwiGluFn);
  SLIPWAY_REGISTER("swiglu_backward", SwiGluBackwardCuda, SwiGluBackwardFn);
  SLIPWAY_REGISTER("attention", AttentionCuda, AttentionFn);
  SLIPWAY_REGISTER("attention_backward", AttentionBackwardCuda, AttentionBackwardFn);
  SLIPWAY_REGISTER("attention_block", AttentionBlockCuda, AttentionBlockFn);
  SLIPWAY_REGISTER("attention_block_backward", AttentionBlockBackwardCuda, AttentionBlockBackwardFn);
  SLIPWAY_REGISTER("dropout_mask", DropoutMaskCuda, DropoutMaskFn);
  SLIPWAY_REGISTER("add_dropout", AddDropoutCuda, AddDropoutFn);
  SLIPWAY_REGISTER("dropout_backward", DropoutBackwardCuda, DropoutBackwardFn);
  SLIPWAY_REGISTER("embedding", EmbeddingCuda, EmbeddingFn);
  SLIPWAY_REGISTER("embedding_backward", EmbeddingBackwardCuda, EmbeddingBackwardFn);
  SLIPWAY_REGISTER("logits", LogitsCuda, LogitsFn);
  SLIPWAY_REGISTER("cross_entropy", CrossEntropyCuda, CrossEntropyFn);
  SLIPWAY_REGISTER("cross_entropy_backward_", CrossEntropyBackwardCuda, CrossEntropyBackwardFn);
  SLIPWAY_REGISTER("mm_accumulate", MmAccumulateCuda, MmAccumulateFn);
  SLIPWAY_REGISTER("grouped_mm", GroupedMmCuda, GroupedMmFn);
  SLIPWAY_REGISTER("grouped_mm_accumulate", GroupedMmAccumulateCuda, GroupedMmAccumulateFn);
  SLIPWAY_REGISTER("bias_grad_accumulate", BiasGradAccumulateCuda, BiasGradAccumulateFn);
  SLIPWAY_REGISTER("sum_squares", SumSquaresCuda, SumSquaresFn);
  SLIPWAY_REGISTER("adamw_", AdamWCuda, AdamWFn);
}

}  // namespace slipway::engine::ops::cuda
