// The inner loops of the CPU kernels: plain pointers, no torch, compiled for several instruction sets and chosen at
// start. Ranges are of one thread; the callers divide the work. Buffers of one call do not overlap unless said.
#ifndef SLIPWAY_ENGINE_OPS_CPU_LOOPS_H_
#define SLIPWAY_ENGINE_OPS_CPU_LOOPS_H_

#include <cstdint>

namespace slipway::engine::ops::loops {

// All scalars of one AdamW update, rounded to the type of the state.
struct AdamWScalars {
  float grad_scale = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float decay = 1;            // 1 − lr · weight_decay
  float step_size = 0;        // lr / (1 − beta1^t)
  float root_correction = 1;  // sqrt(1 − beta2^t)
  float eps = 0;
};
void AdamW(float* master, float* exp_avg, float* exp_avg_sq, const float* grad, int64_t count, const AdamWScalars& s);

// Round to nearest even; NaN stays NaN.
void RoundToBFloat16(const float* from, uint16_t* to, int64_t count);

double SumSquares(const float* x, int64_t count);

// to[i] += from[i]
void Add(float* to, const float* from, int64_t count);
// to[i] = a[i] + b[i]
void Sum(const float* a, const float* b, float* to, int64_t count);

// One row of log Σ exp; −inf for a row of −inf, NaN where an element is NaN.
float LogSumExp(const float* x, int64_t count);
// x[i] = scale · exp(x[i] − lse); zeros for scale 0, whatever x holds.
void ScaledSoftmax(float* x, int64_t count, float lse, float scale);

// silu(gate) · up, and its gradients.
void SwiGlu(const float* gate, const float* up, float* y, int64_t count);
void SwiGluBackward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t count);

// One row of y = x · rstd · weight; returns rstd.
float RmsNorm(const float* x, const float* weight, float* y, int64_t count, float eps);
// One row of dx (+ residual_grad unless null).
void RmsNormBackward(const float* dy, const float* x, const float* weight, float rstd, const float* residual_grad,
                     float* dx, int64_t count);
// to[i] += dy[i] · x[i] · rstd
void AddProduct(float* to, const float* dy, const float* x, float rstd, int64_t count);

// Turns the halves of one head by the angles of its token; sin of the other sign turns back.
void Rotate(float* head, const float* cos, const float* sin, int64_t half);

}  // namespace slipway::engine::ops::loops

#endif  // SLIPWAY_ENGINE_OPS_CPU_LOOPS_H_
