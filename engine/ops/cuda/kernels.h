// Launchers of our CUDA kernels over raw device pointers; registration as torch operators stands in register.cc.
// All pointers are 16-byte aligned, rows are contiguous, and n is a multiple of 8 (bf16) or 4 (fp32). Every sum runs in
// a fixed order: the same input gives the same bits. Errors surface through cudaGetLastError after the launch.
#ifndef SLIPWAY_ENGINE_OPS_CUDA_KERNELS_H_
#define SLIPWAY_ENGINE_OPS_CUDA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace slipway::engine::ops::cuda {

struct RmsNormForwardArgs {
  bool bf16;
  const void* x;         // [rows, n]
  const void* residual;  // [rows, n] or null; then x + residual is normalised and written to sum
  void* sum;
  const void* weight;  // [n]
  void* y;             // [rows, n]
  float* rstd;         // [rows]
  int64_t rows;
  int64_t n;
  float epsilon;
};
void RmsNormForward(const RmsNormForwardArgs& args, cudaStream_t stream);

struct RmsNormBackwardArgs {
  bool bf16;
  const void* dy;
  const void* x;
  const void* weight;
  const float* rstd;
  const void* residual_grad;  // added to dx; null: nothing
  void* dx;
  float* partial;      // [partial_blocks, n] scratch; null: no weight gradient
  int partial_blocks;  // also the grid
  float* weight_grad;  // fp32 [n]
  bool accumulate;
  int64_t rows;
  int64_t n;
};
// False when n is above what a block holds (16,384 for bf16).
bool RmsNormBackward(const RmsNormBackwardArgs& args, cudaStream_t stream);

// out[c] (+)= Σ_b partial[b, c].
void ColumnSum(const float* partial, int blocks, int64_t n, float* out, bool accumulate, cudaStream_t stream);

// in [rows, 2 n] (gate | up) → out [rows, n].
void SwiGluForward(bool bf16, const void* in, void* out, int64_t rows, int64_t n, cudaStream_t stream);
void SwiGluBackward(bool bf16, const void* dy, const void* in, void* din, int64_t rows, int64_t n, cudaStream_t stream);

// One pass over a flat slice: master, moments, and the compute weights' copy. n is a multiple of 4.
struct AdamWArgs {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;
  void* weights;  // compute copy, or null when the master is the compute weight
  bool weights_bf16;
  int64_t n;
  double lr, beta1, beta2, epsilon, weight_decay;
  const float* t;           // device scalar: number of this update, from 1
  const float* grad_scale;  // device scalar or null: 1
  const float* skip;        // device scalar or null; non-zero: nothing is written
};
void AdamW(const AdamWArgs& args, cudaStream_t stream);

// *out = Σ x²; partial has SquareSumBlocks(n) elements.
int SquareSumBlocks(int64_t n);
void SquareSum(const float* x, int64_t n, double* partial, double* out, cudaStream_t stream);

// qkv [tokens, (heads + 2 groups) · dim]; see op_signatures.h for the meaning of the rotary operations. dim is at most
// 256 and even.
struct RopeArgs {
  bool bf16;
  int64_t tokens;
  int heads;
  int groups;
  int dim;
  const int64_t* positions;
  const float* inverse_frequencies;  // [dim / 2]
};
void RopeInPlace(const RopeArgs& args, void* qkv, bool inverse, cudaStream_t stream);

struct QkNormRopeArgs {
  RopeArgs rope;
  const void* qkv;
  const void* q_weight;
  const void* k_weight;
  float* rstd;  // [tokens, heads + groups]
  float epsilon;
};
void QkNormRope(const QkNormRopeArgs& args, void* out, cudaStream_t stream);
// partial [QkNormRopeBackwardBlocks(tokens), 2, dim]: weight gradients of q and k, to be summed over the first
// dimension.
int QkNormRopeBackwardBlocks(int64_t tokens);
void QkNormRopeBackward(const QkNormRopeArgs& args, const void* dout, void* dqkv, float* partial, cudaStream_t stream);

// out [tokens, n]: row ids[t] − first_row of weight, zeros where that lies outside [0, rows).
void EmbeddingForward(bool bf16, const void* weight, const int64_t* ids, int64_t first_row, int64_t rows, void* out,
                      int64_t tokens, int64_t n, cudaStream_t stream);
// sorted_ids with order[i] the token of sorted_ids[i], a stable sort: grad[id − first_row] += Σ dy of its tokens, in
// order.
void EmbeddingBackward(bool bf16, const void* dy, const int64_t* sorted_ids, const int64_t* order, int64_t first_row,
                       int64_t rows, float* grad, int64_t tokens, int64_t n, cudaStream_t stream);

// logits fp32 [tokens, n]; columns are vocabulary entries from first_row on.
void CrossEntropyForward(const float* logits, const int64_t* labels, int64_t first_row, float* lse, float* target,
                         int64_t tokens, int64_t n, cudaStream_t stream);
// out (bf16 or fp32, may be logits itself) = scale · (exp(logits − lse) − onehot).
void CrossEntropyBackward(bool bf16_out, const float* logits, const int64_t* labels, const float* lse,
                          const float* scale, int64_t first_row, void* out, int64_t tokens, int64_t n,
                          cudaStream_t stream);

// Counter-based dropout over [tokens, features]; see op_signatures.h.
struct DropoutArgs {
  const int64_t* sample_index;
  const int64_t* positions;
  int64_t tokens;
  int64_t features;
  float p;
  uint64_t seed, step, site;
};
void DropoutMask(const DropoutArgs& args, float* mask, cudaStream_t stream);
// out = residual + y · mask; residual null: y · mask.
void DropoutApply(bool bf16, const DropoutArgs& args, const void* residual, const void* y, void* out,
                  cudaStream_t stream);

}  // namespace slipway::engine::ops::cuda

#endif  // SLIPWAY_ENGINE_OPS_CUDA_KERNELS_H_
