// RMS norm over the last dimension of [rows, n], in fp32 whatever the storage.
#include "engine/ops/cuda/device_util.cuh"
#include "engine/ops/cuda/kernels.h"

namespace slipway::engine::ops::cuda {
namespace {

// With a residual, the input is residual + x; that sum is written out and normalised.
template <typename T, bool kAdd>
__global__ void ForwardKernel(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ weight,
                              T* __restrict__ sum, T* __restrict__ y, float* __restrict__ rstd, int n, float epsilon) {
  __shared__ float shared[32];
  constexpr int kVec = Vec<T>::kSize;
  const int vectors = n / kVec;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * n;
  float square_sum = 0.f;
  for (int v = threadIdx.x; v < vectors; v += blockDim.x) {
    Vec<T> in = Load(x + start, v);
    if constexpr (kAdd) {
      const Vec<T> other = Load(residual + start, v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) in.data[i] = FromFloat<T>(ToFloat(in.data[i]) + ToFloat(other.data[i]));
      Store(sum + start, v, in);
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) square_sum += ToFloat(in.data[i]) * ToFloat(in.data[i]);
  }
  const float r = rsqrtf(BlockSum(square_sum, shared) / n + epsilon);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  const T* normed = kAdd ? sum : x;  // a thread reads back what it wrote itself
  for (int v = threadIdx.x; v < vectors; v += blockDim.x) {
    const Vec<T> in = Load(normed + start, v), w = Load(weight, v);
    Vec<T> out;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      // Rounded before the product with the weight, as transformers does.
      out.data[i] = FromFloat<T>(ToFloat(FromFloat<T>(ToFloat(in.data[i]) * r)) * ToFloat(w.data[i]));
    }
    Store(y + start, v, out);
  }
}

// Each block walks rows blockIdx.x, blockIdx.x + gridDim.x, …; a thread keeps the weight gradient of its own columns in
// registers and writes it once: partial[block, n].
template <typename T, int kVectorsPerThread>
__global__ void BackwardKernel(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ weight,
                               const float* __restrict__ rstd, const T* __restrict__ residual_grad, T* __restrict__ dx,
                               float* __restrict__ partial, int64_t rows, int n) {
  __shared__ float shared[32];
  constexpr int kVec = Vec<T>::kSize;
  const int vectors = n / kVec;
  float dw[kVectorsPerThread][kVec] = {};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float r = rstd[row];
    Vec<T> xs[kVectorsPerThread], gs[kVectorsPerThread];
    float dot = 0.f;
#pragma unroll
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (v >= vectors) break;
      xs[k] = Load(x + row * n, v);
      gs[k] = Load(dy + row * n, v);
      const Vec<T> w = Load(weight, v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float g = ToFloat(gs[k].data[i]), xhat = ToFloat(xs[k].data[i]) * r;
        dw[k][i] += g * xhat;
        dot += g * ToFloat(w.data[i]) * xhat;
      }
    }
    const float mean = BlockSum(dot, shared) / n;
#pragma unroll
    for (int k = 0; k < kVectorsPerThread; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (v >= vectors) break;
      const Vec<T> w = Load(weight, v);
      Vec<T> out, other = {};
      if (residual_grad != nullptr) other = Load(residual_grad + row * n, v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float xhat = ToFloat(xs[k].data[i]) * r;
        out.data[i] =
            FromFloat<T>(r * (ToFloat(gs[k].data[i]) * ToFloat(w.data[i]) - xhat * mean) + ToFloat(other.data[i]));
      }
      Store(dx + row * n, v, out);
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const int v = threadIdx.x + k * blockDim.x;
    if (v >= vectors) break;
#pragma unroll
    for (int i = 0; i < kVec; ++i) partial[static_cast<int64_t>(blockIdx.x) * n + v * kVec + i] = dw[k][i];
  }
}

// out[c] (+)= Σ_b partial[b, c], in a fixed order.
__global__ void ColumnSumKernel(const float* __restrict__ partial, int blocks, int64_t n, float* __restrict__ out,
                                bool accumulate) {
  __shared__ float shared[32][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.f;
  if (column < n) {
    for (int b = threadIdx.y; b < blocks; b += 32) sum += partial[static_cast<int64_t>(b) * n + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  float total = 0.f;
#pragma unroll
  for (int y = 0; y < 32; ++y) total += shared[y][threadIdx.x];
  out[column] = accumulate ? out[column] + total : total;
}

int ThreadsFor(int64_t vectors) {
  const int64_t threads = CeilDiv(vectors, 32) * 32;
  return static_cast<int>(threads > 256 ? 256 : threads);
}

template <typename T>
void Forward(const RmsNormForwardArgs& a, cudaStream_t stream) {
  auto launch = [&]<bool kAdd>() {
    ForwardKernel<T, kAdd><<<static_cast<unsigned>(a.rows), ThreadsFor(a.n / Vec<T>::kSize), 0, stream>>>(
        static_cast<const T*>(a.x), static_cast<const T*>(a.residual), static_cast<const T*>(a.weight),
        static_cast<T*>(a.sum), static_cast<T*>(a.y), a.rstd, static_cast<int>(a.n), a.epsilon);
  };
  if (a.residual != nullptr)
    launch.template operator()<true>();
  else
    launch.template operator()<false>();
}

template <typename T>
bool Backward(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  const int64_t vectors = a.n / Vec<T>::kSize;
  const int threads = ThreadsFor(vectors);
  const int64_t per_thread = CeilDiv(vectors, threads);
  auto launch = [&]<int kPerThread>() {
    BackwardKernel<T, kPerThread><<<a.partial_blocks, threads, 0, stream>>>(
        static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.weight), a.rstd,
        static_cast<const T*>(a.residual_grad), static_cast<T*>(a.dx), a.partial, a.rows, static_cast<int>(a.n));
  };
  if (per_thread <= 1)
    launch.template operator()<1>();
  else if (per_thread <= 2)
    launch.template operator()<2>();
  else if (per_thread <= 4)
    launch.template operator()<4>();
  else if (per_thread <= 8)
    launch.template operator()<8>();
  else
    return false;
  return true;
}

}  // namespace

void RmsNormForward(const RmsNormForwardArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  if (a.bf16)
    Forward<__nv_bfloat16>(a, stream);
  else
    Forward<float>(a, stream);
}

bool RmsNormBackward(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return true;
  if (!(a.bf16 ? Backward<__nv_bfloat16>(a, stream) : Backward<float>(a, stream))) return false;
  if (a.partial != nullptr) ColumnSum(a.partial, a.partial_blocks, a.n, a.weight_grad, a.accumulate, stream);
  return true;
}

void ColumnSum(const float* partial, int blocks, int64_t n, float* out, bool accumulate, cudaStream_t stream) {
  ColumnSumKernel<<<static_cast<unsigned>(CeilDiv(n, 32)), dim3(32, 32), 0, stream>>>(partial, blocks, n, out,
                                                                                      accumulate);
}

}  // namespace slipway::engine::ops::cuda
