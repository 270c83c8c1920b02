// Small device helpers of our kernels: vector access, conversions, reductions over a block.
#ifndef SLIPWAY_ENGINE_OPS_CUDA_DEVICE_UTIL_CUH_
#define SLIPWAY_ENGINE_OPS_CUDA_DEVICE_UTIL_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace slipway::engine::ops::cuda {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// N elements of T that a thread moves at once; by default 16 bytes, the widest access.
template <typename T, int N = 16 / sizeof(T)>
struct alignas(N * sizeof(T)) Vec {
  static constexpr int kSize = N;
  T data[kSize];
};

template <typename T, int N = 16 / sizeof(T)>
__device__ __forceinline__ Vec<T, N> Load(const T* base, int64_t vector_index) {
  return reinterpret_cast<const Vec<T, N>*>(base)[vector_index];
}
template <typename T, int N>
__device__ __forceinline__ void Store(T* base, int64_t vector_index, const Vec<T, N>& value) {
  reinterpret_cast<Vec<T, N>*>(base)[vector_index] = value;
}

template <typename F>
__device__ __forceinline__ F WarpSum(F x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The same sum in every thread. blockDim.x is a multiple of 32, at most 1024. `shared` has 32 elements.
template <typename F>
__device__ __forceinline__ F BlockSum(F x, F* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  x = WarpSum(x);
  if (warps == 1) return x;
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return WarpSum(lane < warps ? shared[lane] : F{0});
}

__host__ __device__ inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace slipway::engine::ops::cuda

#endif  // SLIPWAY_ENGINE_OPS_CUDA_DEVICE_UTIL_CUH_
