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
namespace {

constexpr int kLanes = 32;  // independent partial results, so that a reduction can be vectorised without reordering

// e^x within 2 ulp, by the range reduction and polynomial of the Cephes library (S. Moshier). Arguments are clamped to
// the range whose results are normal numbers; NaN stays NaN. Inlined into each clone of its callers.
[[gnu::always_inline]] inline float Exp(float x) {
  x = x > 88.3762626647949f ? 88.3762626647949f : x;
  x = x < -87.3365478515625f ? -87.3365478515625f : x;
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504088896341f + kRoundingShift) - kRoundingShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

[[gnu::always_inline]] inline float SumOf(const float (&lanes)[kLanes]) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

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

SLIPWAY_VECTORISED
void Sum(const float* __restrict a, const float* __restrict b, float* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

SLIPWAY_VECTORISED
float LogSumExp(const float* x, int64_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -INFINITY;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  float highest = -INFINITY;
  for (const float lane : lanes) highest = lane > highest ? lane : highest;
  for (; i < count; ++i) highest = x[i] > highest ? x[i] : highest;
  if (!std::isfinite(highest)) highest = 0;  // a row of −inf, or one with +inf or NaN: exp says the rest

  for (float& lane : lanes) lane = 0;
  for (i = 0; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += Exp(x[i + lane] - highest);
  }
  float sum = SumOf(lanes);
  for (; i < count; ++i) sum += Exp(x[i] - highest);
  return highest + std::log(sum);
}

SLIPWAY_VECTORISED
void ScaledSoftmax(float* x, int64_t count, float lse, float scale) {
  if (scale == 0) {
    for (int64_t i = 0; i < count; ++i) x[i] = 0;
    return;
  }
  for (int64_t i = 0; i < count; ++i) x[i] = scale * Exp(x[i] - lse);
}

SLIPWAY_VECTORISED
void SwiGlu(const float* __restrict gate, const float* __restrict up, float* __restrict y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = gate[i] / (1.0f + Exp(-gate[i])) * up[i];
}

SLIPWAY_VECTORISED
void SwiGluBackward(const float* __restrict dy, const float* __restrict gate, const float* __restrict up,
                    float* __restrict dgate, float* __restrict dup, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gate[i], d = dy[i];
    const float sigmoid = 1.0f / (1.0f + Exp(-g));
    dgate[i] = d * up[i] * sigmoid * (1.0f + g * (1.0f - sigmoid));
    dup[i] = d * g * sigmoid;
  }
}

SLIPWAY_VECTORISED
float RmsNorm(const float* __restrict x, const float* __restrict weight, float* __restrict y, int64_t count,
              float eps) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  float squares = SumOf(lanes);
  for (; i < count; ++i) squares += x[i] * x[i];
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(count) + eps);
  for (i = 0; i < count; ++i) y[i] = x[i] * rstd * weight[i];
  return rstd;
}

SLIPWAY_VECTORISED
void RmsNormBackward(const float* __restrict dy, const float* __restrict x, const float* __restrict weight, float rstd,
                     const float* __restrict residual_grad, float* __restrict dx, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += dy[i + lane] * weight[i + lane] * x[i + lane];
  }
  float dot = SumOf(lanes);
  for (; i < count; ++i) dot += dy[i] * weight[i] * x[i];
  const float pull = dot * rstd * rstd / static_cast<float>(count);
  if (residual_grad == nullptr) {
    for (i = 0; i < count; ++i) dx[i] = (dy[i] * weight[i] - x[i] * pull) * rstd;
  } else {
    for (i = 0; i < count; ++i) dx[i] = (dy[i] * weight[i] - x[i] * pull) * rstd + residual_grad[i];
  }
}

SLIPWAY_VECTORISED
void AddProduct(float* __restrict to, const float* __restrict dy, const float* __restrict x, float rstd,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += dy[i] * (x[i] * rstd);
}

SLIPWAY_VECTORISED
void Rotate(float* __restrict head, const float* __restrict cos, const float* __restrict sin, int64_t half) {
  float* __restrict other = head + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = other[i];
    head[i] = a * cos[i] - b * sin[i];
    other[i] = b * cos[i] + a * sin[i];
  }
}

}  // namespace slipway::engine::ops::loops
