// The CPU kernels against the reference: odd sizes, more than one thread's work, both ways of writing a main gradient.
#include "engine/ops/cpu_kernels.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/ops/ops.h"
#include "engine/ops/reference.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::ops {
namespace {

using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;

constexpr double kTolerance = 2e-6;
constexpr int64_t kTokens = 257, kWidth = 331;

at::Tensor Stale(at::IntArrayRef shape) { return at::full(shape, std::numeric_limits<float>::quiet_NaN()); }

TEST(CpuKernelsTest, RmsNorm) {
  const at::Tensor x = at::randn({kTokens, kWidth}), weight = at::randn({kWidth});
  const auto [y, rstd] = cpu::RmsNorm(x, weight, 1e-5);
  const auto [expected, expected_rstd] = reference::RmsNorm(x, weight, 1e-5);
  EXPECT_THAT(y, TensorNear(expected, kTolerance));
  EXPECT_THAT(rstd, TensorNear(expected_rstd, kTolerance));
}

TEST(CpuKernelsTest, AddRmsNorm) {
  const at::Tensor a = at::randn({kTokens, kWidth}), b = at::randn({kTokens, kWidth}), weight = at::randn({kWidth});
  const auto [sum, y, rstd] = cpu::AddRmsNorm(a, b, weight, 1e-5);
  const auto [expected_sum, expected, expected_rstd] = reference::AddRmsNorm(a, b, weight, 1e-5);
  EXPECT_THAT(sum, TensorEqual(expected_sum));
  EXPECT_THAT(y, TensorNear(expected, kTolerance));
  EXPECT_THAT(rstd, TensorNear(expected_rstd, kTolerance));
}

TEST(CpuKernelsTest, RmsNormBackward) {
  const at::Tensor x = at::randn({kTokens, kWidth}), weight = at::randn({kWidth}), dy = at::randn({kTokens, kWidth});
  const at::Tensor rstd = std::get<1>(reference::RmsNorm(x, weight, 1e-5));
  for (const OptionalTensor& residual : {OptionalTensor(), OptionalTensor(at::randn({kTokens, kWidth}))}) {
    at::Tensor grad = Stale({kWidth}), expected_grad = Stale({kWidth});
    for (const bool accumulate : {false, true}) {
      EXPECT_THAT(
          cpu::RmsNormBackward(dy, x, weight, rstd, residual, grad, accumulate),
          TensorNear(reference::RmsNormBackward(dy, x, weight, rstd, residual, expected_grad, accumulate), kTolerance));
      EXPECT_THAT(grad, TensorNear(expected_grad, kTolerance));
    }
    EXPECT_THAT(cpu::RmsNormBackward(dy, x, weight, rstd, residual, std::nullopt, false),
                TensorNear(reference::RmsNormBackward(dy, x, weight, rstd, residual, std::nullopt, false), kTolerance));
  }
}

TEST(CpuKernelsTest, Rope) {
  const at::Tensor positions = at::randint(0, 5000, {kTokens}, at::kLong), frequencies = at::rand({9});
  for (const bool inverse : {false, true}) {
    const at::Tensor qkv = at::randn({kTokens, 7 * 18}), expected = qkv.clone();
    cpu::Rope(qkv, positions, frequencies, 3, 2, inverse);
    reference::Rope(expected, positions, frequencies, 3, 2, inverse);
    EXPECT_THAT(qkv, TensorNear(expected, 1e-5));
  }
  EXPECT_THROW(cpu::Rope(at::zeros({kTokens, 100}), positions, frequencies, 3, 2, false), c10::Error);
}

TEST(CpuKernelsTest, SwiGlu) {
  const at::Tensor gate_up = at::randn({kTokens, 2 * kWidth}) * 20, dy = at::randn({kTokens, kWidth});
  EXPECT_THAT(cpu::SwiGlu(gate_up), TensorNear(reference::SwiGlu(gate_up), kTolerance));
  EXPECT_THAT(cpu::SwiGluBackward(dy, gate_up), TensorNear(reference::SwiGluBackward(dy, gate_up), kTolerance));
}

TEST(CpuKernelsTest, SwiGluOfVeryLargeInputsIsFinite) {
  const at::Tensor gate_up = at::tensor({-1e4f, -100.f, 100.f, 1e4f, 1.f, 1.f, 1.f, 1.f}).view({1, 8});
  EXPECT_THAT(cpu::SwiGlu(gate_up), TensorNear(at::tensor({0.f, 0.f, 100.f, 1e4f}).view({1, 4}), 1e-6));
  EXPECT_TRUE(cpu::SwiGluBackward(at::ones({1, 4}), gate_up).isfinite().all().item<bool>());
}

TEST(CpuKernelsTest, CrossEntropyAndItsGradient) {
  for (const int64_t first_row : {0, 100}) {
    const at::Tensor logits = at::randn({kTokens, kWidth}) * 5, labels = at::randint(0, 500, {kTokens}, at::kLong);
    const at::Tensor scale = at::rand({kTokens}) * (at::rand({kTokens}) < 0.7);
    const auto [lse, target] = cpu::CrossEntropy(logits, labels, first_row);
    const auto [expected_lse, expected_target] = reference::CrossEntropy(logits, labels, first_row);
    EXPECT_THAT(lse, TensorNear(expected_lse, kTolerance));
    EXPECT_THAT(target, TensorEqual(expected_target));
    EXPECT_THAT(
        cpu::CrossEntropyBackward(logits.clone(), labels, lse, scale, first_row, at::kFloat),
        TensorNear(reference::CrossEntropyBackward(logits.clone(), labels, lse, scale, first_row, at::kFloat), 1e-5));
  }
}

TEST(CpuKernelsTest, CrossEntropyOfRowsThatAreNotFinite) {
  const float inf = INFINITY;
  at::Tensor logits = at::zeros({3, 40});
  logits[0].fill_(-inf);
  logits[1][7] = NAN;
  logits[2].fill_(1e4f);
  const at::Tensor labels = at::zeros({3}, at::kLong);
  const at::Tensor lse = std::get<0>(cpu::CrossEntropy(logits, labels, 0));
  EXPECT_TRUE(std::isnan(lse[1].item<float>()));
  EXPECT_NEAR(lse[2].item<float>(), 1e4 + std::log(40.0), 1e-2);
  const at::Tensor gradient = cpu::CrossEntropyBackward(logits, labels, lse, at::zeros({3}), 0, at::kFloat);
  EXPECT_THAT(gradient, TensorEqual(at::zeros({3, 40})));
}

TEST(CpuKernelsTest, CrossEntropyWithoutColumns) {
  const auto [lse, target] = cpu::CrossEntropy(at::zeros({2, 0}), at::zeros({2}, at::kLong), 5);
  EXPECT_TRUE((lse == -INFINITY).all().item<bool>());
  EXPECT_TRUE((target == 0).all().item<bool>());
}

TEST(CpuKernelsTest, EmbeddingBackward) {
  const at::Tensor ids = at::randint(0, 60, {kTokens}, at::kLong), dy = at::randn({kTokens, kWidth});
  at::Tensor grad = Stale({40, kWidth}), expected = Stale({40, kWidth});
  for (const bool accumulate : {false, true}) {
    cpu::EmbeddingBackward(dy, ids, 10, grad, accumulate);
    reference::EmbeddingBackward(dy, ids, 10, expected, accumulate);
    EXPECT_THAT(grad, TensorNear(expected, kTolerance));
  }
}

TEST(CpuKernelsTest, SumSquaresTellsWhetherAllIsFinite) {
  at::Tensor x = at::randn({200001});
  EXPECT_NEAR(cpu::SumSquares(x).item<double>() / reference::SumSquares(x).item<double>(), 1, 1e-12);
  x[150000] = 3e38f;  // its square is no float
  EXPECT_TRUE(std::isfinite(cpu::SumSquares(x).item<double>()));
  x[150000] = INFINITY;
  EXPECT_FALSE(std::isfinite(cpu::SumSquares(x).item<double>()));
  x[150000] = NAN;
  EXPECT_FALSE(std::isfinite(cpu::SumSquares(x).item<double>()));
}

struct State {
  at::Tensor master, first, second, weights;
};

TEST(CpuKernelsTest, AdamW) {
  const at::Tensor start = at::randn({70001});
  State ours{start.clone(), at::zeros_like(start), at::zeros_like(start), at::zeros({70001}, at::kBFloat16)};
  State expected{start.clone(), at::zeros_like(start), at::zeros_like(start), at::zeros({70001}, at::kBFloat16)};
  for (int t = 1; t <= 4; ++t) {
    const at::Tensor grad = at::randn_like(start);
    const at::Tensor number = at::scalar_tensor(t, at::kFloat), scale = at::scalar_tensor(0.5, at::kFloat);
    const at::Tensor skip = at::scalar_tensor(t == 3 ? 1 : 0, at::kFloat), before = ours.master.clone();
    cpu::AdamW(ours.master, ours.first, ours.second, grad, ours.weights, number, scale, skip, 1e-2, 0.9, 0.95, 1e-8,
               0.1);
    reference::AdamW(expected.master, expected.first, expected.second, grad, expected.weights, number, scale, skip,
                     1e-2, 0.9, 0.95, 1e-8, 0.1);
    if (t == 3) {
      EXPECT_THAT(ours.master, TensorEqual(before));
    }
    EXPECT_THAT(ours.master, TensorNear(expected.master, kTolerance));
    EXPECT_THAT(ours.first, TensorNear(expected.first, kTolerance));
    EXPECT_THAT(ours.second, TensorNear(expected.second, kTolerance));
    EXPECT_THAT(ours.weights, TensorEqual(ours.master.to(at::kBFloat16)));
  }
}

// Rounding is torch's, for every kind of number.
TEST(CpuKernelsTest, AdamWRoundsWeightsToNearestEven) {
  const at::Tensor master = at::tensor({1.00390625f, 1.01171875f, -0.0f, 1e-40f, 3.4e38f, 1.0f});
  at::Tensor weights = at::zeros({6}, at::kBFloat16);
  const at::Tensor zero = at::zeros({6}), one = at::scalar_tensor(1, at::kFloat);
  cpu::AdamW(master, zero.clone(), zero.clone(), zero, weights, one, one, at::scalar_tensor(0, at::kFloat), 0, 0.9,
             0.95, 1e-8, 0);
  EXPECT_THAT(weights, TensorEqual(master.to(at::kBFloat16)));
}

TEST(CpuKernelsTest, AttentionEqualsTheReference) {
  const std::vector<int64_t> rows = {0, 5, 5, 70, 80};
  const at::Tensor starts = at::tensor({0, 5, 5, 70, 80}, at::kInt);
  const at::Tensor qkv = at::randn({80, 8 * 16}), dout = at::randn({80, 4 * 16});
  const auto [out, lse] = cpu::Attention(qkv, starts, rows, 65, false, 4, 2, 0.25);
  const auto [expected, expected_lse] = reference::Attention(qkv, starts, rows, 65, false, 4, 2, 0.25);
  EXPECT_THAT(out, TensorNear(expected, 1e-5));
  EXPECT_THAT(
      cpu::AttentionBackward(dout, qkv, out, lse, starts, rows, 65, false, 4, 2, 0.25),
      TensorNear(reference::AttentionBackward(dout, qkv, expected, expected_lse, starts, rows, 65, false, 4, 2, 0.25),
                 1e-5));
}

struct BlockCase {
  std::vector<int64_t> q_starts, kv_starts;
  int64_t max_q, max_kv;
  bool uniform, causal;
};
const std::vector<BlockCase>& BlockCases() {
  static const std::vector<BlockCase> cases = {{{0, 5, 5, 70, 80}, {0, 5, 5, 70, 80}, 65, 65, false, true},
                                               {{0, 10, 10, 74, 80}, {0, 5, 5, 37, 40}, 64, 32, false, false},
                                               {{0, 5, 5, 37, 40}, {0, 10, 10, 74, 80}, 32, 64, false, false},
                                               {{0, 40, 80, 80}, {0, 20, 40, 40}, 40, 20, true, false}};
  return cases;
}

TEST(CpuKernelsTest, AttentionBlockEqualsTheReference) {
  for (const BlockCase& c : BlockCases()) {
    const at::Tensor starts;  // of the device: not read here
    const at::Tensor all = at::randn({c.q_starts.back(), 6 * 16});
    const at::Tensor q = all.narrow(1, 16, 4 * 16);  // columns of a larger matrix
    const at::Tensor kv = at::randn({c.kv_starts.back(), 4 * 16}), dout = at::randn({c.q_starts.back(), 4 * 16});
    const auto [out, lse] = cpu::AttentionBlock(q, kv, starts, starts, c.q_starts, c.kv_starts, c.max_q, c.max_kv,
                                                c.uniform, c.causal, 4, 2, 0.25);
    const auto [expected, expected_lse] = reference::AttentionBlock(q, kv, starts, starts, c.q_starts, c.kv_starts,
                                                                    c.max_q, c.max_kv, c.uniform, c.causal, 4, 2, 0.25);
    EXPECT_THAT(out, TensorNear(expected, 1e-5));
    EXPECT_THAT(lse, TensorNear(expected_lse, 1e-5));
    // Other keys take part as well: their sum is larger than this block's, the output another.
    const at::Tensor all_lse = lse + 0.3, all_out = at::randn_like(out);
    const auto [dq, dkv] = cpu::AttentionBlockBackward(dout, q, kv, all_out, all_lse, starts, starts, c.q_starts,
                                                       c.kv_starts, c.max_q, c.max_kv, c.uniform, c.causal, 4, 2, 0.25);
    const auto [expected_dq, expected_dkv] =
        reference::AttentionBlockBackward(dout, q, kv, all_out, all_lse, starts, starts, c.q_starts, c.kv_starts,
                                          c.max_q, c.max_kv, c.uniform, c.causal, 4, 2, 0.25);
    EXPECT_THAT(dq, TensorNear(expected_dq, 1e-5));
    EXPECT_THAT(dkv, TensorNear(expected_dkv, 1e-5));
  }
}

TEST(OpsTest, Bf16GradientsAreAccumulatedInFp32) {
  const at::Tensor dy = at::randn({6, 4}).to(at::kBFloat16), x = at::randn({6, 3}).to(at::kBFloat16);
  at::Tensor grad = Stale({4, 3}), bias = Stale({4});
  MmAccumulate(grad, dy, x, false);
  MmAccumulate(grad, dy, x, true);
  EXPECT_THAT(grad, TensorNear(dy.to(at::kFloat).t().mm(x.to(at::kFloat)) * 2, kTolerance));
  BiasGradAccumulate(bias, dy, false);
  BiasGradAccumulate(bias, dy, true);
  EXPECT_THAT(bias, TensorNear(dy.to(at::kFloat).sum(0) * 2, kTolerance));
}

}  // namespace
}  // namespace slipway::engine::ops
