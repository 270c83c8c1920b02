// The operations of namespace `slipway` in torch's dispatcher: for each its schema and its exact C++ signature. The
// ATen reference (CompositeExplicitAutograd), the CPU kernels and the CUDA plug-in all register against this one
// header; a plug-in whose function differs from the signature here ends the process while it is loaded.
//
//   TORCH_LIBRARY_IMPL(slipway, CUDA, m) { m.impl("rms_norm", TORCH_FN(RmsNormCuda)); }   // RmsNormFn
//   static_assert(std::is_same_v<decltype(RmsNormCuda), ops::RmsNormFn>);
//
// Conventions
//  - T tokens, H hidden, V local vocabulary rows. Tensors are contiguous. "Compute type" is bf16 or fp32 (also fp64 on
//    the CPU, for tests of gradients); statistics are fp32 (fp64 for fp64) and norms, softmax, RoPE and loss are
//    computed in it. Gradients of activations have the compute type.
//  - Main gradients (`*_grad` arguments, written in place) are fp32. With accumulate == false their content is stale:
//    it is overwritten, never read (it may be NaN). An absent one means that the parameter is frozen.
//  - No operation communicates, waits for the device, or allocates more than it says.
//  - Operations carry no autograd of their own. Call them below AutoDispatchBelowADInplaceOrView: engine/nn's Functions
//    do; a bare call on a tensor that requires grad would lose its gradient on CUDA.
//  - Random numbers are a pure function (common/philox.h: DropoutKey, DropoutCounter) of seed, step, site, each token's
//    sample_index and position, and the feature.
#ifndef SLIPWAY_ENGINE_OPS_OP_SIGNATURES_H_
#define SLIPWAY_ENGINE_OPS_OP_SIGNATURES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace slipway::engine::ops {

using OptionalTensor = std::optional<at::Tensor>;

// --- RMS norm --------------------------------------------------------------------------------------------
// y = x · rstd · weight, rstd = 1 / sqrt(mean(x²) + eps). x [T, H], weight [H] → y [T, H], rstd fp32 [T]. x·rstd is
// rounded to the compute type before the product with weight, as in transformers.
inline constexpr char kRmsNorm[] = "rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)";
using RmsNormFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& x, const at::Tensor& weight, double eps);

// sum = residual + y, then its norm → (sum, normed, rstd).
inline constexpr char kAddRmsNorm[] =
    "add_rms_norm(Tensor residual, Tensor y, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)";
using AddRmsNormFn = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor& residual, const at::Tensor& y,
                                                                    const at::Tensor& weight, double eps);

// → dx, to which residual_grad [T, H] is added where present (the gradient that reached `sum` by its other use).
// weight_grad [H] (+)= Σ_T dy · x · rstd.
inline constexpr char kRmsNormBackward[] =
    "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor? residual_grad, Tensor(a!)? "
    "weight_grad, "
    "bool accumulate) -> Tensor";
using RmsNormBackwardFn = at::Tensor(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& rstd, const OptionalTensor& residual_grad,
                                     const OptionalTensor& weight_grad, bool accumulate);

// --- Rotary embedding on packed q | k | v ----------------------------------------------------------------
// qkv [T, (heads + 2 · groups) · D]: all query heads, then key heads, then value heads. Pair i of a head is its
// dimensions i and i + D/2 (the half-split convention) and turns by positions[t] · inverse_frequencies[i]; inverse ==
// true turns back (the gradient). In place, on query and key heads; values stay. positions int64 [T],
// inverse_frequencies fp32 [D / 2].
inline constexpr char kRope[] =
    "rope_(Tensor(a!) qkv, Tensor positions, Tensor inverse_frequencies, int heads, int groups, bool inverse) -> ()";
using RopeFn = void(at::Tensor qkv, const at::Tensor& positions, const at::Tensor& inverse_frequencies, int64_t heads,
                    int64_t groups, bool inverse);

// The same after an RMS norm of each query and key head over D (q_weight, k_weight [D]), out of place → (qkv', rstd
// fp32 [T, heads + groups]). Value heads are copied.
inline constexpr char kQkNormRope[] =
    "qk_norm_rope(Tensor qkv, Tensor q_weight, Tensor k_weight, float eps, Tensor positions, Tensor "
    "inverse_frequencies, "
    "int heads, int groups) -> (Tensor, Tensor)";
using QkNormRopeFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& qkv, const at::Tensor& q_weight,
                                                        const at::Tensor& k_weight, double eps,
                                                        const at::Tensor& positions,
                                                        const at::Tensor& inverse_frequencies, int64_t heads,
                                                        int64_t groups);

// dout: gradient of qkv' → gradient of qkv. q_weight_grad and k_weight_grad [D] are summed over tokens and heads.
inline constexpr char kQkNormRopeBackward[] =
    "qk_norm_rope_backward(Tensor dout, Tensor qkv, Tensor q_weight, Tensor k_weight, Tensor rstd, Tensor positions, "
    "Tensor inverse_frequencies, int heads, int groups, Tensor(a!)? q_weight_grad, bool q_accumulate, "
    "Tensor(b!)? k_weight_grad, bool k_accumulate) -> Tensor";
using QkNormRopeBackwardFn = at::Tensor(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& q_weight,
                                        const at::Tensor& k_weight, const at::Tensor& rstd, const at::Tensor& positions,
                                        const at::Tensor& inverse_frequencies, int64_t heads, int64_t groups,
                                        const OptionalTensor& q_weight_grad, bool q_accumulate,
                                        const OptionalTensor& k_weight_grad, bool k_accumulate);

// --- SwiGLU ----------------------------------------------------------------------------------------------
// gate_up [T, 2I] (gate first) → silu(gate) · up [T, I].
inline constexpr char kSwiGlu[] = "swiglu(Tensor gate_up) -> Tensor";
using SwiGluFn = at::Tensor(const at::Tensor& gate_up);
inline constexpr char kSwiGluBackward[] = "swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor";
using SwiGluBackwardFn = at::Tensor(const at::Tensor& dy, const at::Tensor& gate_up);

// --- Attention -------------------------------------------------------------------------------------------
// Causal within each row; query head h reads key/value head h / (heads / groups). qkv packed as above → out [T, heads
// · D] and what the backward needs of the softmax (lse; its shape is the implementation's own). Row r is tokens
// [row_starts[r], row_starts[r + 1]): on the device as cu_seqlens int32 and on the host as row_starts. The two are
// equal, may end in repeats of T (empty rows), and cover [0, T). On CUDA only the length of row_starts may matter, so
// that a captured graph serves every batch; `uniform` says that all rows have max_row_length tokens.
inline constexpr char kAttention[] =
    "attention(Tensor qkv, Tensor cu_seqlens, int[] row_starts, int max_row_length, bool uniform, int heads, int "
    "groups, "
    "float scale) -> (Tensor, Tensor)";
using AttentionFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                                                       at::IntArrayRef row_starts, int64_t max_row_length, bool uniform,
                                                       int64_t heads, int64_t groups, double scale);
// → dqkv, packed.
inline constexpr char kAttentionBackward[] =
    "attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor cu_seqlens, int[] row_starts, "
    "int max_row_length, bool uniform, int heads, int groups, float scale) -> Tensor";
using AttentionBackwardFn = at::Tensor(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& out,
                                       const at::Tensor& lse, const at::Tensor& cu_seqlens, at::IntArrayRef row_starts,
                                       int64_t max_row_length, bool uniform, int64_t heads, int64_t groups,
                                       double scale);

// Queries over one block of keys and values, where those of a row lie in several blocks (context parallelism). Row r
// has the queries [q_starts[r], q_starts[r + 1]) of q [Tq, heads · D] and the keys and values [kv_starts[r], …) of kv
// [Tk, 2 · groups · D] (key heads, then value heads); q may be columns of a larger matrix. causal: both sides have the
// same rows and query i reads keys 0 … i; else it reads all keys of its row. A row with queries has keys. → out
// [Tq, heads · D] and lse [heads, Tq], the log Σ exp of the scaled scores in the type of the statistics: results over
// several blocks can be merged. uniform: each side's rows have one length.
inline constexpr char kAttentionBlock[] =
    "attention_block(Tensor q, Tensor kv, Tensor q_cu_seqlens, Tensor kv_cu_seqlens, int[] q_starts, int[] kv_starts, "
    "int max_q, int max_kv, bool uniform, bool causal, int heads, int groups, float scale) -> (Tensor, Tensor)";
using AttentionBlockFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& q, const at::Tensor& kv,
                                                            const at::Tensor& q_cu_seqlens,
                                                            const at::Tensor& kv_cu_seqlens, at::IntArrayRef q_starts,
                                                            at::IntArrayRef kv_starts, int64_t max_q, int64_t max_kv,
                                                            bool uniform, bool causal, int64_t heads, int64_t groups,
                                                            double scale);
// out and lse are those over all blocks → this block's part of dq, and dkv.
inline constexpr char kAttentionBlockBackward[] =
    "attention_block_backward(Tensor dout, Tensor q, Tensor kv, Tensor out, Tensor lse, Tensor q_cu_seqlens, "
    "Tensor kv_cu_seqlens, int[] q_starts, int[] kv_starts, int max_q, int max_kv, bool uniform, bool causal, "
    "int heads, int groups, float scale) -> (Tensor, Tensor)";
using AttentionBlockBackwardFn = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor& q_cu_seqlens, const at::Tensor& kv_cu_seqlens, at::IntArrayRef q_starts,
    at::IntArrayRef kv_starts, int64_t max_q, int64_t max_kv, bool uniform, bool causal, int64_t heads, int64_t groups,
    double scale);

// With dropout of the attention probabilities: the reference on every device (built of ATen and dropout_mask),
// materialises the probabilities of one row at a time. The local heads are first_head … of the model's.
inline constexpr char kAttentionDropout[] =
    "attention_dropout(Tensor qkv, Tensor sample_index, Tensor positions, int[] row_starts, int heads, int groups, "
    "float scale, int first_head, float p, int seed, int step, int site) -> Tensor";
using AttentionDropoutFn = at::Tensor(const at::Tensor& qkv, const at::Tensor& sample_index,
                                      const at::Tensor& positions, at::IntArrayRef row_starts, int64_t heads,
                                      int64_t groups, double scale, int64_t first_head, double p, int64_t seed,
                                      int64_t step, int64_t site);
inline constexpr char kAttentionDropoutBackward[] =
    "attention_dropout_backward(Tensor dout, Tensor qkv, Tensor sample_index, Tensor positions, int[] row_starts, "
    "int heads, int groups, float scale, int first_head, float p, int seed, int step, int site) -> Tensor";
using AttentionDropoutBackwardFn = at::Tensor(const at::Tensor& dout, const at::Tensor& qkv,
                                              const at::Tensor& sample_index, const at::Tensor& positions,
                                              at::IntArrayRef row_starts, int64_t heads, int64_t groups, double scale,
                                              int64_t first_head, double p, int64_t seed, int64_t step, int64_t site);

// --- Dropout ---------------------------------------------------------------------------------------------
// fp32 [T, features]: 0 where dropped, else 1 / (1 − p). Element (t, f) is dropped when PhiloxUniform of word f % 4 of
// block DropoutCounter(sample_index[t], positions[t], f / 4) under DropoutKey(seed, step, site) is below float(p).
// sample_index and positions are int64 [T]. 0 ≤ p < 1. seed, step and site are the bits of unsigned numbers.
inline constexpr char kDropoutMask[] =
    "dropout_mask(Tensor sample_index, Tensor positions, int features, float p, int seed, int step, int site) -> "
    "Tensor";
using DropoutMaskFn = at::Tensor(const at::Tensor& sample_index, const at::Tensor& positions, int64_t features,
                                 double p, int64_t seed, int64_t step, int64_t site);
// residual + y · mask (the product and the sum in fp32, rounded once).
inline constexpr char kAddDropout[] =
    "add_dropout(Tensor residual, Tensor y, Tensor sample_index, Tensor positions, float p, int seed, int step, int "
    "site) "
    "-> Tensor";
using AddDropoutFn = at::Tensor(const at::Tensor& residual, const at::Tensor& y, const at::Tensor& sample_index,
                                const at::Tensor& positions, double p, int64_t seed, int64_t step, int64_t site);
// dy · mask: the gradient of y.
inline constexpr char kDropoutBackward[] =
    "dropout_backward(Tensor dy, Tensor sample_index, Tensor positions, float p, int seed, int step, int site) -> "
    "Tensor";
using DropoutBackwardFn = at::Tensor(const at::Tensor& dy, const at::Tensor& sample_index, const at::Tensor& positions,
                                     double p, int64_t seed, int64_t step, int64_t site);

// --- Embedding -------------------------------------------------------------------------------------------
// weight [V, H] is rows [first_row, first_row + V) of the whole table; ids int64 [T] → [T, H], zero for rows elsewhere.
inline constexpr char kEmbedding[] = "embedding(Tensor weight, Tensor ids, int first_row) -> Tensor";
using EmbeddingFn = at::Tensor(const at::Tensor& weight, const at::Tensor& ids, int64_t first_row);
// weight_grad[id − first_row] += dy[t]; with accumulate == false the whole of it is zeroed first. The order of
// additions into one row is that of the tokens.
inline constexpr char kEmbeddingBackward[] =
    "embedding_backward(Tensor dy, Tensor ids, int first_row, Tensor(a!) weight_grad, bool accumulate) -> ()";
using EmbeddingBackwardFn = void(const at::Tensor& dy, const at::Tensor& ids, int64_t first_row, at::Tensor weight_grad,
                                 bool accumulate);

// --- Output layer and loss -------------------------------------------------------------------------------
// x [T, H] · weightᵀ [V, H] → fp32 [T, V], not rounded to the compute type in between.
inline constexpr char kLogits[] = "logits(Tensor x, Tensor weight) -> Tensor";
using LogitsFn = at::Tensor(const at::Tensor& x, const at::Tensor& weight);
// Over the columns of this rank: logits fp32 [T, V] stand for vocabulary entries [first_row, first_row + V) →
// (lse fp32 [T] = log Σ exp, target fp32 [T] = the label's logit, 0 where the label lies on another rank). V may be 0:
// lse is −inf then.
inline constexpr char kCrossEntropy[] =
    "cross_entropy(Tensor logits, Tensor labels, int first_row) -> (Tensor, Tensor)";
using CrossEntropyFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& logits, const at::Tensor& labels,
                                                          int64_t first_row);
// scale[t] · (exp(logits − lse) − onehot(label)) as [T, V] of type `dtype`; lse is the whole vocabulary's. May
// overwrite `logits` and return it (fp32). A token with scale 0 gives exact zeros whatever its logits are.
inline constexpr char kCrossEntropyBackward[] =
    "cross_entropy_backward_(Tensor(a!) logits, Tensor labels, Tensor lse, Tensor scale, int first_row, ScalarType "
    "dtype) "
    "-> Tensor";
using CrossEntropyBackwardFn = at::Tensor(at::Tensor logits, const at::Tensor& labels, const at::Tensor& lse,
                                          const at::Tensor& scale, int64_t first_row, at::ScalarType dtype);

// --- Weight gradients ------------------------------------------------------------------------------------
// main_grad [N, K] (+)= dyᵀ [N, T] · x [T, K] in fp32, whatever the type of dy and x. main_grad may be rows of a
// larger one.
inline constexpr char kMmAccumulate[] =
    "mm_accumulate(Tensor(a!) main_grad, Tensor dy, Tensor x, bool accumulate) -> ()";
using MmAccumulateFn = void(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x, bool accumulate);
// main_grad [N] (+)= Σ_T dy.
inline constexpr char kBiasGradAccumulate[] =
    "bias_grad_accumulate(Tensor(a!) main_grad, Tensor dy, bool accumulate) -> ()";
using BiasGradAccumulateFn = void(at::Tensor main_grad, const at::Tensor& dy, bool accumulate);

// --- Grouped products (experts) ---------------------------------------------------------------------------
// Rows of x lie group after group: group g has rows [ends[g − 1], ends[g]) (from 0 for the first); ends int32 [G] on
// x's device, ascending. A group may be empty. Rows past the last end belong to no group: what they come out as is
// undefined, and no gradient sees them. transpose == true: weight [G, N, K], x [R, K] → x · weight[g]ᵀ [R, N]; false:
// x [R, N] → x · weight[g] [R, K]. On CUDA bf16 never waits for the device; other types read `ends` on the host.
inline constexpr char kGroupedMm[] = "grouped_mm(Tensor x, Tensor weight, Tensor ends, bool transpose) -> Tensor";
using GroupedMmFn = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, bool transpose);
// main_grad [G, N, K] (+)= dyᵀ · x of each group's rows, in fp32; dy [R, N], x [R, K]. Groups without rows get zeros
// (or stay, with accumulate).
inline constexpr char kGroupedMmAccumulate[] =
    "grouped_mm_accumulate(Tensor(a!) main_grad, Tensor dy, Tensor x, Tensor ends, bool accumulate) -> ()";
using GroupedMmAccumulateFn = void(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& ends, bool accumulate);

// --- Optimizer, on flat fp32 slices of equal length ------------------------------------------------------
// Σ x² as an fp64 tensor of shape []. Finite exactly when every element is, so it is the check for non-finite gradients
// too.
inline constexpr char kSumSquares[] = "sum_squares(Tensor x) -> Tensor";
using SumSquaresFn = at::Tensor(const at::Tensor& x);
// AdamW (decoupled decay), bias-corrected as in torch:
//   g = grad · grad_scale; exp_avg, exp_avg_sq ← their averages; master ← master · (1 − lr · weight_decay)
//   − lr / (1 − beta1^t) · exp_avg / (sqrt(exp_avg_sq) / sqrt(1 − beta2^t) + eps); weights ← master, rounded.
// weights: compute type, absent where master is the compute weight itself. On the device, shape []: t fp32 (the number
// of this update, from 1), grad_scale fp32 (clip coefficient and loss scale), skip fp32 (non-zero: nothing changes).
inline constexpr char kAdamW[] =
    "adamw_(Tensor(a!) master, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor grad, Tensor(d!)? weights, Tensor t, "
    "Tensor grad_scale, Tensor skip, float lr, float beta1, float beta2, float eps, float weight_decay) -> ()";
using AdamWFn = void(at::Tensor master, at::Tensor exp_avg, at::Tensor exp_avg_sq, const at::Tensor& grad,
                     const OptionalTensor& weights, const at::Tensor& t, const at::Tensor& grad_scale,
                     const at::Tensor& skip, double lr, double beta1, double beta2, double eps, double weight_decay);

}  // namespace slipway::engine::ops

#endif  // SLIPWAY_ENGINE_OPS_OP_SIGNATURES_H_
