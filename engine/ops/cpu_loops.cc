#include "engine/ops/cpu_loops.h"

#include <bit>
#include <cmath>

// Each function below exists once for each of these, and the loader picks the best that the processor has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SLIPWAY_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SLIPWAY_VECTORISED
#endif

namespace slipway::engine::ops::loops {

SLIPWAY_VECTORISED
void AdamW(float* __restrict master, float* __restrict exp_avg, float* __restrict exp_avg_sq,
           const float* __restrict grad, int64_t count, const AdamWScalars& scalars) {
  const AdamWScalars s = scalars;
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * s.grad_scale;
    const float m = exp_avg[i] + (g - exp_avg[i]) * s.one_minus_beta1;
    const float v = exp_avg_sq[i] * s.beta2 + g * g * s.one_minus_beta2;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = master[i] * s.decay - s.step_size * m / (std::sqrt(v) / s.root_correction + s.eps);
  }
}

SLIPWAY_VECTORISED
void RoundToBFloat16(const float* __restrict from, uint16_t* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x0040u;
    to[i] = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
  }
}

SLIPWAY_VECTORISED
double SumSquares(const float* x, int64_t count) {
  constexpr int kLanes = 32;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

SLIPWAY_VECTORISED
void Add(float* __restrict to, const float* __restrict from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace slipway::engine::ops::loops
