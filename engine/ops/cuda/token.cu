// What works on tokens one by one: embedding, cross-entropy, dropout.
#include <cmath>

#include "common/philox.h"
#include "engine/ops/cuda/device_util.cuh"
#include "engine/ops/cuda/kernels.h"

namespace slipway::engine::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void EmbeddingForwardKernel(const T* __restrict__ weight, const int64_t* __restrict__ ids, int64_t first_row,
                                       int64_t rows, T* __restrict__ out, int64_t n) {
  const int64_t token = blockIdx.x, row = ids[token] - first_row;
  const bool here = row >= 0 && row < rows;
  for (int64_t v = threadIdx.x; v < n / Vec<T>::kSize; v += blockDim.x) {
    Store(out + token * n, v, here ? Load(weight + row * n, v) : Vec<T>{});
  }
}

// The block of a run's first token adds up the whole run.
template <typename T>
__global__ void EmbeddingBackwardKernel(const T* __restrict__ dy, const int64_t* __restrict__ sorted_ids,
                                        const int64_t* __restrict__ order, int64_t first_row, int64_t rows,
                                        float* __restrict__ grad, int64_t tokens, int64_t n) {
  const int64_t start = blockIdx.x, id = sorted_ids[start], row = id - first_row;
  if (row < 0 || row >= rows || (start > 0 && sorted_ids[start - 1] == id)) return;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    float sum = grad[row * n + c];
    for (int64_t i = start; i < tokens && sorted_ids[i] == id; ++i) sum += ToFloat(dy[order[i] * n + c]);
    grad[row * n + c] = sum;
  }
}

struct MaxSum {
  float max;
  float sum;  // of exp(x − max)
};
__device__ __forceinline__ MaxSum Join(MaxSum a, MaxSum b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {max, 0.f};
  return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
}

__global__ void CrossEntropyForwardKernel(const float* __restrict__ logits, const int64_t* __restrict__ labels,
                                          int64_t first_row, float* __restrict__ lse, float* __restrict__ target,
                                          int64_t n) {
  __shared__ float shared_max[32], shared_sum[32];
  const int64_t token = blockIdx.x;
  const float* row = logits + token * n;
  MaxSum local = {-INFINITY, 0.f};
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    const float x = row[c];
    if (x > local.max) {
      local.sum = local.sum * __expf(local.max - x) + 1.f;
      local.max = x;
    } else if (x != -INFINITY) {
      local.sum += __expf(x - local.max);  // NaN reaches the sum
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    local =
        Join(local, {__shfl_xor_sync(0xffffffffu, local.max, offset), __shfl_xor_sync(0xffffffffu, local.sum, offset)});
  }
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (lane == 0) shared_max[warp] = local.max, shared_sum[warp] = local.sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < warps; ++w) local = Join(local, {shared_max[w], shared_sum[w]});
  lse[token] = local.max == -INFINITY && local.sum == 0.f ? -INFINITY : local.max + logf(local.sum);
  const int64_t label = labels[token] - first_row;
  target[token] = label >= 0 && label < n ? row[label] : 0.f;
}

template <typename T>
__global__ void CrossEntropyBackwardKernel(const float* logits, const int64_t* __restrict__ labels,
                                           const float* __restrict__ lse, const float* __restrict__ scale,
                                           int64_t first_row, T* out, int64_t n) {
  const int64_t token = blockIdx.y, label = labels[token] - first_row;
  const float s = scale[token], l = lse[token];
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < n;
       c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float p = s == 0.f ? 0.f : s * (__expf(logits[token * n + c] - l) - (c == label ? 1.f : 0.f));
    out[token * n + c] = FromFloat<T>(p);
  }
}

// Keep factors of features 4 g … 4 g + 3 of one token.
__device__ __forceinline__ void KeepFactors(const DropoutArgs& a, PhiloxKey key, int64_t token, int64_t group,
                                            float (&keep)[4]) {
  const PhiloxBlock block =
      Philox(key, DropoutCounter(static_cast<uint64_t>(a.sample_index[token]),
                                 static_cast<uint32_t>(a.positions[token]), static_cast<uint32_t>(group)));
#pragma unroll
  for (int i = 0; i < 4; ++i) keep[i] = PhiloxUniform(block.v[i]) < a.p ? 0.f : 1.f / (1.f - a.p);
}

__global__ void DropoutMaskKernel(DropoutArgs a, PhiloxKey key, float* __restrict__ mask) {
  const int64_t groups = CeilDiv(a.features, 4);
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < a.tokens * groups;
       at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t token = at / groups, group = at % groups;
    float keep[4];
    KeepFactors(a, key, token, group, keep);
    for (int64_t i = 0; i < 4 && group * 4 + i < a.features; ++i) mask[token * a.features + group * 4 + i] = keep[i];
  }
}

template <typename T>
__global__ void DropoutApplyKernel(DropoutArgs a, PhiloxKey key, const T* __restrict__ residual,
                                   const T* __restrict__ y, T* __restrict__ out) {
  const int64_t groups = CeilDiv(a.features, 4);
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < a.tokens * groups;
       at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t token = at / groups, group = at % groups;
    float keep[4];
    KeepFactors(a, key, token, group, keep);
    for (int64_t i = 0; i < 4 && group * 4 + i < a.features; ++i) {
      const int64_t e = token * a.features + group * 4 + i;
      const float base = residual == nullptr ? 0.f : ToFloat(residual[e]);
      out[e] = FromFloat<T>(__fadd_rn(base, __fmul_rn(ToFloat(y[e]), keep[i])));
    }
  }
}

unsigned GridFor(int64_t work) {
  const int64_t blocks = CeilDiv(work, kThreads);
  return static_cast<unsigned>(blocks < 132 * 32 ? blocks : 132 * 32);
}

}  // namespace

void EmbeddingForward(bool bf16, const void* weight, const int64_t* ids, int64_t first_row, int64_t rows, void* out,
                      int64_t tokens, int64_t n, cudaStream_t stream) {
  if (tokens == 0) return;
  const unsigned grid = static_cast<unsigned>(tokens);
  if (bf16) {
    using T = __nv_bfloat16;
    EmbeddingForwardKernel<T>
        <<<grid, kThreads, 0, stream>>>(static_cast<const T*>(weight), ids, first_row, rows, static_cast<T*>(out), n);
  } else {
    EmbeddingForwardKernel<float><<<grid, kThreads, 0, stream>>>(static_cast<const float*>(weight), ids, first_row,
                                                                 rows, static_cast<float*>(out), n);
  }
}

void EmbeddingBackward(bool bf16, const void* dy, const int64_t* sorted_ids, const int64_t* order, int64_t first_row,
                       int64_t rows, float* grad, int64_t tokens, int64_t n, cudaStream_t stream) {
  if (tokens == 0) return;
  const unsigned grid = static_cast<unsigned>(tokens);
  if (bf16) {
    using T = __nv_bfloat16;
    EmbeddingBackwardKernel<T>
        <<<grid, kThreads, 0, stream>>>(static_cast<const T*>(dy), sorted_ids, order, first_row, rows, grad, tokens, n);
  } else {
    EmbeddingBackwardKernel<float><<<grid, kThreads, 0, stream>>>(static_cast<const float*>(dy), sorted_ids, order,
                                                                  first_row, rows, grad, tokens, n);
  }
}

void CrossEntropyForward(const float* logits, const int64_t* labels, int64_t first_row, float* lse, float* target,
                         int64_t tokens, int64_t n, cudaStream_t stream) {
  if (tokens == 0) return;
  CrossEntropyForwardKernel<<<static_cast<unsigned>(tokens), 1024, 0, stream>>>(logits, labels, first_row, lse, target,
                                                                                n);
}

void CrossEntropyBackward(bool bf16_out, const float* logits, const int64_t* labels, const float* lse,
                          const float* scale, int64_t first_row, void* out, int64_t tokens, int64_t n,
                          cudaStream_t stream) {
  // The token is the grid's second dimension, which is limited: go in slices.
  constexpr int64_t kMaxTokens = 32768;
  for (int64_t begin = 0; begin < tokens; begin += kMaxTokens) {
    const int64_t count = tokens - begin < kMaxTokens ? tokens - begin : kMaxTokens;
    const int64_t columns = CeilDiv(n, kThreads * 8);
    const dim3 grid(static_cast<unsigned>(columns > 0 ? columns : 1), static_cast<unsigned>(count));
    const float* l = logits + begin * n;
    if (bf16_out) {
      CrossEntropyBackwardKernel<<<grid, kThreads, 0, stream>>>(
          l, labels + begin, lse + begin, scale + begin, first_row, static_cast<__nv_bfloat16*>(out) + begin * n, n);
    } else {
      CrossEntropyBackwardKernel<<<grid, kThreads, 0, stream>>>(l, labels + begin, lse + begin, scale + begin,
                                                                first_row, static_cast<float*>(out) + begin * n, n);
    }
  }
}

void DropoutMask(const DropoutArgs& args, float* mask, cudaStream_t stream) {
  if (args.tokens * args.features == 0) return;
  DropoutMaskKernel<<<GridFor(args.tokens * CeilDiv(args.features, 4)), kThreads, 0, stream>>>(
      args, DropoutKey(args.seed, args.step, args.site), mask);
}

void DropoutApply(bool bf16, const DropoutArgs& args, const void* residual, const void* y, void* out,
                  cudaStream_t stream) {
  if (args.tokens * args.features == 0) return;
  const unsigned grid = GridFor(args.tokens * CeilDiv(args.features, 4));
  const PhiloxKey key = DropoutKey(args.seed, args.step, args.site);
  if (bf16) {
    using T = __nv_bfloat16;
    DropoutApplyKernel<T><<<grid, kThreads, 0, stream>>>(args, key, static_cast<const T*>(residual),
                                                         static_cast<const T*>(y), static_cast<T*>(out));
  } else {
    DropoutApplyKernel<float><<<grid, kThreads, 0, stream>>>(args, key, static_cast<const float*>(residual),
                                                             static_cast<const float*>(y), static_cast<float*>(out));
  }
}

}  // namespace slipway::engine::ops::cuda
