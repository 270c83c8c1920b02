// Rotary embedding on packed q | k | v, alone or after a norm of each query and key head. One block works on one token
// at a time; a warp takes one head at a time, and a lane owns the pairs (i, i + dim/2) with i = lane + 32 k.
#include "engine/ops/cuda/device_util.cuh"
#include "engine/ops/cuda/kernels.h"

namespace slipway::engine::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPairs = 4;  // a lane's pairs of a head: dim <= 256
constexpr int kMaxHalf = 32 * kMaxPairs;

// cosine and sine of every pair's angle at one position, for all heads.
__device__ __forceinline__ void FillAngles(const RopeArgs& a, int64_t token, bool inverse, float* cosine, float* sine) {
  __syncthreads();
  const float position = static_cast<float>(a.positions[token]);
  for (int i = threadIdx.x; i < a.dim / 2; i += blockDim.x) {
    sincosf(position * a.inverse_frequencies[i], &sine[i], &cosine[i]);
    if (inverse) sine[i] = -sine[i];
  }
  __syncthreads();
}

template <typename T>
__global__ void RopeKernel(RopeArgs a, T* __restrict__ qkv, bool inverse) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  const int half = a.dim / 2, rotated = a.heads + a.groups;
  const int64_t row = static_cast<int64_t>(a.heads + 2 * a.groups) * a.dim;
  for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    FillAngles(a, token, inverse, cosine, sine);
    for (int at = threadIdx.x; at < rotated * half; at += blockDim.x) {
      const int head = at / half, i = at % half;
      T* x = qkv + token * row + static_cast<int64_t>(head) * a.dim;
      const float first = ToFloat(x[i]), second = ToFloat(x[i + half]);
      x[i] = FromFloat<T>(first * cosine[i] - second * sine[i]);
      x[i + half] = FromFloat<T>(second * cosine[i] + first * sine[i]);
    }
  }
}

template <typename T>
__global__ void QkNormRopeKernel(QkNormRopeArgs a, T* __restrict__ out) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  const RopeArgs& r = a.rope;
  const int half = r.dim / 2, rotated = r.heads + r.groups, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t row = static_cast<int64_t>(r.heads + 2 * r.groups) * r.dim;
  for (int64_t token = blockIdx.x; token < r.tokens; token += gridDim.x) {
    FillAngles(r, token, false, cosine, sine);
    for (int head = warp; head < rotated; head += kWarps) {
      const T* x = static_cast<const T*>(a.qkv) + token * row + static_cast<int64_t>(head) * r.dim;
      T* y = out + token * row + static_cast<int64_t>(head) * r.dim;
      const T* weight = static_cast<const T*>(head < r.heads ? a.q_weight : a.k_weight);
      float sum = 0.f;
      for (int i = lane; i < r.dim; i += 32) sum += ToFloat(x[i]) * ToFloat(x[i]);
      const float inv = rsqrtf(WarpSum(sum) / r.dim + a.epsilon);
      if (lane == 0) a.rstd[token * rotated + head] = inv;
      for (int i = lane; i < half; i += 32) {
        // Rounded where transformers rounds: after the norm, and after the product with the weight.
        const float first = ToFloat(FromFloat<T>(ToFloat(FromFloat<T>(ToFloat(x[i]) * inv)) * ToFloat(weight[i])));
        const float second =
            ToFloat(FromFloat<T>(ToFloat(FromFloat<T>(ToFloat(x[i + half]) * inv)) * ToFloat(weight[i + half])));
        y[i] = FromFloat<T>(first * cosine[i] - second * sine[i]);
        y[i + half] = FromFloat<T>(second * cosine[i] + first * sine[i]);
      }
    }
    const int64_t values = token * row + static_cast<int64_t>(rotated) * r.dim;
    for (int i = threadIdx.x; i < r.groups * r.dim; i += blockDim.x)
      out[values + i] = static_cast<const T*>(a.qkv)[values + i];
  }
}

template <typename T>
__global__ void QkNormRopeBackwardKernel(QkNormRopeArgs a, const T* __restrict__ dout, T* __restrict__ dqkv,
                                         float* __restrict__ partial) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  __shared__ float weight_grad[kWarps][2 * 2 * kMaxHalf];  // [warp][q or k][dim]
  const RopeArgs& r = a.rope;
  const int half = r.dim / 2, rotated = r.heads + r.groups, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t row = static_cast<int64_t>(r.heads + 2 * r.groups) * r.dim;
  for (int i = lane; i < 2 * r.dim; i += 32) weight_grad[warp][i] = 0.f;
  for (int64_t token = blockIdx.x; token < r.tokens; token += gridDim.x) {
    FillAngles(r, token, true, cosine, sine);
    for (int head = warp; head < rotated; head += kWarps) {
      const int64_t at = token * row + static_cast<int64_t>(head) * r.dim;
      const T* x = static_cast<const T*>(a.qkv) + at;
      const T* dy = dout + at;
      const bool query = head < r.heads;
      const T* weight = static_cast<const T*>(query ? a.q_weight : a.k_weight);
      float* dw = weight_grad[warp] + (query ? 0 : r.dim);
      const float inv = a.rstd[token * rotated + head];
      float gradient[2 * kMaxPairs], dot = 0.f;
#pragma unroll
      for (int k = 0; k < kMaxPairs; ++k) {
        const int i = lane + 32 * k;
        if (i >= half) break;
        const float first = ToFloat(dy[i]), second = ToFloat(dy[i + half]);
        gradient[2 * k] = first * cosine[i] - second * sine[i];
        gradient[2 * k + 1] = second * cosine[i] + first * sine[i];
        const float xhat0 = ToFloat(x[i]) * inv, xhat1 = ToFloat(x[i + half]) * inv;
        dw[i] += gradient[2 * k] * xhat0;
        dw[i + half] += gradient[2 * k + 1] * xhat1;
        dot += gradient[2 * k] * ToFloat(weight[i]) * xhat0 + gradient[2 * k + 1] * ToFloat(weight[i + half]) * xhat1;
      }
      const float mean = WarpSum(dot) / r.dim;
#pragma unroll
      for (int k = 0; k < kMaxPairs; ++k) {
        const int i = lane + 32 * k;
        if (i >= half) break;
        dqkv[at + i] = FromFloat<T>(inv * (gradient[2 * k] * ToFloat(weight[i]) - ToFloat(x[i]) * inv * mean));
        dqkv[at + i + half] =
            FromFloat<T>(inv * (gradient[2 * k + 1] * ToFloat(weight[i + half]) - ToFloat(x[i + half]) * inv * mean));
      }
    }
    const int64_t values = token * row + static_cast<int64_t>(rotated) * r.dim;
    for (int i = threadIdx.x; i < r.groups * r.dim; i += blockDim.x) dqkv[values + i] = dout[values + i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * r.dim; i += blockDim.x) {
    float sum = 0.f;
    for (int w = 0; w < kWarps; ++w) sum += weight_grad[w][i];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * r.dim + i] = sum;
  }
}

unsigned Blocks(int64_t tokens) { return static_cast<unsigned>(tokens < 132 * 8 ? tokens : 132 * 8); }

}  // namespace

void RopeInPlace(const RopeArgs& a, void* qkv, bool inverse, cudaStream_t stream) {
  if (a.tokens == 0) return;
  if (a.bf16)
    RopeKernel<__nv_bfloat16><<<Blocks(a.tokens), kThreads, 0, stream>>>(a, static_cast<__nv_bfloat16*>(qkv), inverse);
  else
    RopeKernel<float><<<Blocks(a.tokens), kThreads, 0, stream>>>(a, static_cast<float*>(qkv), inverse);
}

void QkNormRope(const QkNormRopeArgs& a, void* out, cudaStream_t stream) {
  const int64_t tokens = a.rope.tokens;
  if (tokens == 0) return;
  if (a.rope.bf16)
    QkNormRopeKernel<__nv_bfloat16><<<Blocks(tokens), kThreads, 0, stream>>>(a, static_cast<__nv_bfloat16*>(out));
  else
    QkNormRopeKernel<float><<<Blocks(tokens), kThreads, 0, stream>>>(a, static_cast<float*>(out));
}

int QkNormRopeBackwardBlocks(int64_t tokens) { return static_cast<int>(Blocks(tokens)); }

void QkNormRopeBackward(const QkNormRopeArgs& a, const void* dout, void* dqkv, float* partial, cudaStream_t stream) {
  const int64_t tokens = a.rope.tokens;
  if (tokens == 0) return;
  if (a.rope.bf16) {
    using T = __nv_bfloat16;
    QkNormRopeBackwardKernel<T>
        <<<Blocks(tokens), kThreads, 0, stream>>>(a, static_cast<const T*>(dout), static_cast<T*>(dqkv), partial);
  } else {
    QkNormRopeBackwardKernel<float><<<Blocks(tokens), kThreads, 0, stream>>>(a, static_cast<const float*>(dout),
                                                                             static_cast<float*>(dqkv), partial);
  }
}

}  // namespace slipway::engine::ops::cuda
