// SwiGLU and the one-pass AdamW step.
#include "engine/ops/cuda/device_util.cuh"
#include "engine/ops/cuda/kernels.h"

namespace slipway::engine::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float Sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }

// in [rows, 2 n]: gate | up, N elements at a time.
template <typename T, int N>
__global__ void SwiGluForwardKernel(const T* __restrict__ in, T* __restrict__ out, int64_t rows, int64_t n) {
  const int64_t vectors = n / N, total = rows * vectors;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < total;
       at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = at / vectors, v = at % vectors;
    const Vec<T, N> gate = Load<T, N>(in + row * 2 * n, v), up = Load<T, N>(in + row * 2 * n + n, v);
    Vec<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = ToFloat(gate.data[i]);
      y.data[i] = FromFloat<T>(g * Sigmoid(g) * ToFloat(up.data[i]));
    }
    Store(out + row * n, v, y);
  }
}

template <typename T, int N>
__global__ void SwiGluBackwardKernel(const T* __restrict__ dy, const T* __restrict__ in, T* __restrict__ din,
                                     int64_t rows, int64_t n) {
  const int64_t vectors = n / N, total = rows * vectors;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < total;
       at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = at / vectors, v = at % vectors;
    const Vec<T, N> gate = Load<T, N>(in + row * 2 * n, v), up = Load<T, N>(in + row * 2 * n + n, v),
                    d = Load<T, N>(dy + row * n, v);
    Vec<T, N> dgate, dup;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = ToFloat(gate.data[i]), u = ToFloat(up.data[i]), dd = ToFloat(d.data[i]), s = Sigmoid(g);
      dgate.data[i] = FromFloat<T>(dd * u * s * (1.f + g * (1.f - s)));
      dup.data[i] = FromFloat<T>(dd * g * s);
    }
    Store(din + row * 2 * n, v, dgate);
    Store(din + row * 2 * n + n, v, dup);
  }
}

template <typename T>
__global__ void AdamWKernel(AdamWArgs a) {
  if (a.skip != nullptr && *a.skip != 0.f) return;
  // In fp64, once a block: 1 − β^t loses most of its digits in fp32 while t is small.
  __shared__ float corrections[2];
  if (threadIdx.x == 0) {
    corrections[0] = static_cast<float>(a.lr / (1.0 - pow(a.beta1, static_cast<double>(*a.t))));
    corrections[1] = static_cast<float>(1.0 / sqrt(1.0 - pow(a.beta2, static_cast<double>(*a.t))));
  }
  __syncthreads();
  const float scale = a.grad_scale == nullptr ? 1.f : *a.grad_scale;
  const float step_size = corrections[0], inverse_sqrt2 = corrections[1],
              decay = static_cast<float>(1.0 - a.lr * a.weight_decay);
  const float beta1 = static_cast<float>(a.beta1), beta2 = static_cast<float>(a.beta2),
              rest1 = static_cast<float>(1.0 - a.beta1), rest2 = static_cast<float>(1.0 - a.beta2),
              epsilon = static_cast<float>(a.epsilon);
  T* weights = static_cast<T*>(a.weights);
  const int64_t vectors = a.n / 4;
  for (int64_t v = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; v < vectors;
       v += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    float4 p = reinterpret_cast<float4*>(a.master)[v], m = reinterpret_cast<float4*>(a.exp_avg)[v],
           s = reinterpret_cast<float4*>(a.exp_avg_sq)[v];
    const float4 g4 = reinterpret_cast<const float4*>(a.grad)[v];
    float* pp = &p.x;
    float* mm = &m.x;
    float* ss = &s.x;
    const float* gg = &g4.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float g = gg[i] * scale;
      mm[i] = beta1 * mm[i] + rest1 * g;
      ss[i] = beta2 * ss[i] + rest2 * g * g;
      pp[i] = pp[i] * decay - step_size * mm[i] / (sqrtf(ss[i]) * inverse_sqrt2 + epsilon);
    }
    reinterpret_cast<float4*>(a.master)[v] = p;
    reinterpret_cast<float4*>(a.exp_avg)[v] = m;
    reinterpret_cast<float4*>(a.exp_avg_sq)[v] = s;
    if (weights != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[v * 4 + i] = FromFloat<T>(pp[i]);
    }
  }
}

unsigned GridFor(int64_t work) {
  const int64_t blocks = CeilDiv(work, kThreads);
  return static_cast<unsigned>(blocks < 132 * 32 ? (blocks > 0 ? blocks : 1) : 132 * 32);
}

// Σ x² per block in a fixed order: partial[block].
__global__ void SquareSumKernel(const float* __restrict__ x, int64_t n, double* __restrict__ partial) {
  __shared__ double shared[32];
  double sum = 0;
  for (int64_t v = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; v < n / 4;
       v += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float4 a = reinterpret_cast<const float4*>(x)[v];
    sum += static_cast<double>(a.x * a.x + a.y * a.y + (a.z * a.z + a.w * a.w));
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void FinalSumKernel(const double* __restrict__ partial, int count, double* __restrict__ out) {
  __shared__ double shared[32];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) *out = sum;
}

}  // namespace

// A tensor-parallel share of the feed-forward may have any width: what is not whole vectors goes one element at a time.
template <typename T>
void SwiGluForwardOf(const void* in, void* out, int64_t rows, int64_t n, cudaStream_t stream) {
  constexpr int kWide = Vec<T>::kSize;
  const auto* const from = static_cast<const T*>(in);
  auto* const to = static_cast<T*>(out);
  if (n % kWide == 0)
    SwiGluForwardKernel<T, kWide><<<GridFor(rows * n / kWide), kThreads, 0, stream>>>(from, to, rows, n);
  else
    SwiGluForwardKernel<T, 1><<<GridFor(rows * n), kThreads, 0, stream>>>(from, to, rows, n);
}

template <typename T>
void SwiGluBackwardOf(const void* dy, const void* in, void* din, int64_t rows, int64_t n, cudaStream_t stream) {
  constexpr int kWide = Vec<T>::kSize;
  const auto *const grad = static_cast<const T*>(dy), *const from = static_cast<const T*>(in);
  auto* const to = static_cast<T*>(din);
  if (n % kWide == 0)
    SwiGluBackwardKernel<T, kWide><<<GridFor(rows * n / kWide), kThreads, 0, stream>>>(grad, from, to, rows, n);
  else
    SwiGluBackwardKernel<T, 1><<<GridFor(rows * n), kThreads, 0, stream>>>(grad, from, to, rows, n);
}

void SwiGluForward(bool bf16, const void* in, void* out, int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows == 0) return;
  if (bf16)
    SwiGluForwardOf<__nv_bfloat16>(in, out, rows, n, stream);
  else
    SwiGluForwardOf<float>(in, out, rows, n, stream);
}

void SwiGluBackward(bool bf16, const void* dy, const void* in, void* din, int64_t rows, int64_t n,
                    cudaStream_t stream) {
  if (rows == 0) return;
  if (bf16)
    SwiGluBackwardOf<__nv_bfloat16>(dy, in, din, rows, n, stream);
  else
    SwiGluBackwardOf<float>(dy, in, din, rows, n, stream);
}

void AdamW(const AdamWArgs& args, cudaStream_t stream) {
  if (args.n == 0) return;
  if (args.weights_bf16)
    AdamWKernel<__nv_bfloat16><<<GridFor(args.n / 4), kThreads, 0, stream>>>(args);
  else
    AdamWKernel<float><<<GridFor(args.n / 4), kThreads, 0, stream>>>(args);
}

int SquareSumBlocks(int64_t n) { return static_cast<int>(GridFor(n / 4) < 1056 ? GridFor(n / 4) : 1056); }

void SquareSum(const float* x, int64_t n, double* partial, double* out, cudaStream_t stream) {
  const int blocks = SquareSumBlocks(n);
  SquareSumKernel<<<blocks, kThreads, 0, stream>>>(x, n, partial);
  FinalSumKernel<<<1, 1024, 0, stream>>>(partial, blocks, out);
}

}  // namespace slipway::engine::ops::cuda
