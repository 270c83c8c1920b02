// Every CUDA operation against the CPU reference on the same inputs. bf16 inputs are rounded first and the reference
// then runs in fp32 on the rounded values, so only the kernel's own rounding is left: tolerances are a few units of
// bf16.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/ops/ops.h"
#include "tests/gpu/gpu_environment.h"

namespace slipway::engine::ops {
namespace {

using at::Tensor;

constexpr int64_t kSeed = 5, kStep = 17, kSite = 3;

double RelativeError(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(at::kCPU).to(at::kDouble), b = want.to(at::kCPU).to(at::kDouble);
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(at::isfinite(a).all().item<bool>());
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-30);
}

class OpsGpuTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    no_grad_.emplace(false);
  }
  at::ScalarType dtype() const { return GetParam(); }
  double tolerance() const { return dtype() == at::kBFloat16 ? 6e-3 : 2e-5; }
  // A random fp32 tensor whose values the compute type can hold.
  Tensor Random(at::IntArrayRef sizes, double scale = 1.0) const {
    return (at::randn(sizes) * scale).to(dtype()).to(at::kFloat);
  }
  Tensor Gpu(const Tensor& x) const { return x.to(at::kCUDA, dtype()).contiguous(); }
  static Tensor Raw(const Tensor& x) { return x.to(at::kCUDA).contiguous(); }
  void ExpectClose(const Tensor& got, const Tensor& want, double factor = 1.0) const {
    EXPECT_LE(RelativeError(got, want), tolerance() * factor);
  }

  std::optional<at::AutoGradMode> no_grad_;
};

TEST_P(OpsGpuTest, RmsNormForwardAndBackward) {
  for (const int64_t hidden : {64, 896, 2048, 8192}) {
    const Tensor x = Random({37, hidden}), w = Random({hidden}), dy = Random({37, hidden}),
                 residual = Random({37, hidden});
    const auto [y, rstd] = RmsNorm(x, w, 1e-6);
    const auto [gy, grstd] = RmsNorm(Gpu(x), Gpu(w), 1e-6);
    ExpectClose(gy, y);
    ExpectClose(grstd, rstd);
    const auto [sum, normed, sum_rstd] = AddRmsNorm(residual, x, w, 1e-6);
    const auto [gsum, gnormed, gsum_rstd] = AddRmsNorm(Gpu(residual), Gpu(x), Gpu(w), 1e-6);
    ExpectClose(gsum, sum);
    ExpectClose(gnormed, normed, 2);
    for (const bool accumulate : {false, true}) {
      Tensor dw = at::full({hidden}, 0.5), gdw = Raw(dw);
      const Tensor dx = RmsNormBackward(dy, x, w, rstd, residual, dw, accumulate);
      const Tensor gdx = RmsNormBackward(Gpu(dy), Gpu(x), Gpu(w), Raw(rstd), Gpu(residual), gdw, accumulate);
      ExpectClose(gdx, dx);
      ExpectClose(gdw, dw);
    }
    ExpectClose(RmsNormBackward(Gpu(dy), Gpu(x), Gpu(w), Raw(rstd), std::nullopt, std::nullopt, false),
                RmsNormBackward(dy, x, w, rstd, std::nullopt, std::nullopt, false));
  }
}

TEST_P(OpsGpuTest, RopeBothWays) {
  for (const int64_t dim : {64, 128}) {
    const Tensor qkv = Random({50, (6 + 2 * 2) * dim}), positions = at::arange(50) * 37 + 3;
    const Tensor frequencies =
        at::pow(at::full({dim / 2}, 10000.0f), -at::arange(dim / 2).to(at::kFloat) * 2 / dim).contiguous();
    for (const bool inverse : {false, true}) {
      Tensor a = qkv.clone(), b = Gpu(qkv);
      Rope(a, positions, frequencies, 6, 2, inverse);
      Rope(b, Raw(positions), Raw(frequencies), 6, 2, inverse);
      ExpectClose(b, a);
    }
  }
}

TEST_P(OpsGpuTest, QkNormRopeForwardAndBackward) {
  for (const int64_t dim : {32, 64, 128}) {
    const int64_t width = (4 + 2 * 2) * dim;
    const Tensor qkv = Random({70, width}), qw = Random({dim}), kw = Random({dim}), dout = Random({70, width});
    const Tensor positions = at::arange(70), frequencies = at::rand({dim / 2});
    const auto [y, rstd] = QkNormRope(qkv, qw, kw, 1e-6, positions, frequencies, 4, 2);
    const auto [gy, grstd] = QkNormRope(Gpu(qkv), Gpu(qw), Gpu(kw), 1e-6, Raw(positions), Raw(frequencies), 4, 2);
    ExpectClose(gy, y, 2);
    ExpectClose(grstd, rstd);
    Tensor dq = at::full({dim}, 0.25), dk = at::full({dim}, 0.75), gdq = Raw(dq), gdk = Raw(dk);
    const Tensor dx = QkNormRopeBackward(dout, qkv, qw, kw, rstd, positions, frequencies, 4, 2, dq, true, dk, false);
    const Tensor gdx = QkNormRopeBackward(Gpu(dout), Gpu(qkv), Gpu(qw), Gpu(kw), Raw(rstd), Raw(positions),
                                          Raw(frequencies), 4, 2, gdq, true, gdk, false);
    ExpectClose(gdx, dx, 2);
    ExpectClose(gdq, dq, 2);
    ExpectClose(gdk, dk, 2);
  }
}

TEST_P(OpsGpuTest, SwiGluForwardAndBackward) {
  for (const int64_t width : {176, 34}) {  // whole 16-byte vectors, and not
    const Tensor in = Random({33, 2 * width}, 2.0), dy = Random({33, width});
    ExpectClose(SwiGlu(Gpu(in)), SwiGlu(in));
    ExpectClose(SwiGluBackward(Gpu(dy), Gpu(in)), SwiGluBackward(dy, in));
  }
}

TEST_P(OpsGpuTest, AttentionOnUniformAndRaggedRows) {
  struct Case {
    std::vector<int64_t> starts;
    bool uniform;
  };
  for (const int64_t dim : {64, 128}) {
    for (const Case& c : {Case{{0, 128, 256}, true}, Case{{0, 100, 101, 230, 256, 256}, false}}) {
      const int64_t heads = 4, groups = 2;
      int64_t longest = 0;
      for (size_t i = 1; i < c.starts.size(); ++i) longest = std::max(longest, c.starts[i] - c.starts[i - 1]);
      const Tensor qkv = Random({256, (heads + 2 * groups) * dim}), dout = Random({256, heads * dim});
      const Tensor cu = at::tensor(std::vector<int32_t>(c.starts.begin(), c.starts.end()), at::kInt);
      const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
      const auto [out, lse] = Attention(qkv, cu, c.starts, longest, c.uniform, heads, groups, scale);
      const auto [gout, glse] = Attention(Gpu(qkv), Raw(cu), c.starts, longest, c.uniform, heads, groups, scale);
      ExpectClose(gout, out, 2);
      const Tensor dqkv =
          AttentionBackward(dout, qkv, out, lse, cu, c.starts, longest, c.uniform, heads, groups, scale);
      const Tensor gdqkv = AttentionBackward(Gpu(dout), Gpu(qkv), gout, glse, Raw(cu), c.starts, longest, c.uniform,
                                             heads, groups, scale);
      ExpectClose(gdqkv, dqkv, 2);
    }
  }
}

// Rows whose queries and keys differ in number, as blocks of context parallelism have them; and the own block.
TEST_P(OpsGpuTest, AttentionOverBlocks) {
  struct Case {
    std::vector<int64_t> q_starts, kv_starts;
    bool uniform, causal;
  };
  const std::vector<int64_t> even = {0, 128, 256, 256}, half = {0, 64, 128, 128};
  const std::vector<int64_t> ragged = {0, 100, 102, 230, 256, 256}, ragged_half = {0, 50, 51, 115, 128, 128};
  for (const Case& c : {Case{even, even, true, true}, Case{even, half, true, false}, Case{half, even, true, false},
                        Case{ragged, ragged, false, true}, Case{ragged, ragged_half, false, false},
                        Case{ragged_half, ragged, false, false}}) {
    const int64_t heads = 4, groups = 2, dim = 64, tokens = c.q_starts.back(), keys = c.kv_starts.back();
    const auto longest = [](const std::vector<int64_t>& starts) {
      int64_t most = 0;
      for (size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
      return most;
    };
    const auto device_starts = [](const std::vector<int64_t>& starts) {
      return at::tensor(std::vector<int32_t>(starts.begin(), starts.end()), at::kInt);
    };
    const Tensor q = Random({tokens, heads * dim}), kv = Random({keys, 2 * groups * dim});
    const Tensor dout = Random({tokens, heads * dim}), cu_q = device_starts(c.q_starts),
                 cu_kv = device_starts(c.kv_starts);
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    const auto [out, lse] = AttentionBlock(q, kv, cu_q, cu_kv, c.q_starts, c.kv_starts, longest(c.q_starts),
                                           longest(c.kv_starts), c.uniform, c.causal, heads, groups, scale);
    const auto [gout, glse] =
        AttentionBlock(Gpu(q), Gpu(kv), Raw(cu_q), Raw(cu_kv), c.q_starts, c.kv_starts, longest(c.q_starts),
                       longest(c.kv_starts), c.uniform, c.causal, heads, groups, scale);
    ExpectClose(gout, out, 2);
    EXPECT_LE(RelativeError(glse, lse), 1e-4);
    // With the log-sum-exp and output of more keys than the block's, as after a merge.
    const Tensor all_lse = lse + 0.3, all_out = Random({tokens, heads * dim});
    const auto [dq, dkv] =
        AttentionBlockBackward(dout, q, kv, all_out, all_lse, cu_q, cu_kv, c.q_starts, c.kv_starts, longest(c.q_starts),
                               longest(c.kv_starts), c.uniform, c.causal, heads, groups, scale);
    const auto [gdq, gdkv] = AttentionBlockBackward(Gpu(dout), Gpu(q), Gpu(kv), Gpu(all_out), Raw(all_lse), Raw(cu_q),
                                                    Raw(cu_kv), c.q_starts, c.kv_starts, longest(c.q_starts),
                                                    longest(c.kv_starts), c.uniform, c.causal, heads, groups, scale);
    ExpectClose(gdq, dq, 2);
    ExpectClose(gdkv, dkv, 2);
  }
}

TEST_P(OpsGpuTest, DropoutIsTheSameOnBothDevices) {
  const Tensor sample = at::arange(40).div(10, "floor") + (int64_t{1} << 33), position = at::arange(40).remainder(10);
  const Tensor mask = DropoutMask(sample, position, 130, 0.1, kSeed, kStep, kSite);
  EXPECT_TRUE(at::equal(DropoutMask(Raw(sample), Raw(position), 130, 0.1, kSeed, kStep, kSite).cpu(), mask));
  const Tensor residual = Random({40, 130}), y = Random({40, 130});
  ExpectClose(AddDropout(Gpu(residual), Gpu(y), Raw(sample), Raw(position), 0.1, kSeed, kStep, kSite),
              AddDropout(residual, y, sample, position, 0.1, kSeed, kStep, kSite));
  ExpectClose(DropoutBackward(Gpu(y), Raw(sample), Raw(position), 0.1, kSeed, kStep, kSite),
              DropoutBackward(y, sample, position, 0.1, kSeed, kStep, kSite));
}

TEST_P(OpsGpuTest, EmbeddingOfAShardOfTheVocabulary) {
  const Tensor weight = Random({100, 64}), dy = Random({300, 64}), ids = at::randint(0, 200, {300}, at::kLong);
  ExpectClose(Embedding(Gpu(weight), Raw(ids), 50), Embedding(weight, ids, 50));
  for (const bool accumulate : {false, true}) {
    Tensor grad = at::ones({100, 64}), ggrad = Raw(grad);
    EmbeddingBackward(dy, ids, 50, grad, accumulate);
    EmbeddingBackward(Gpu(dy), Raw(ids), 50, ggrad, accumulate);
    ExpectClose(ggrad, grad);
  }
}

TEST_P(OpsGpuTest, OutputLayerAndCrossEntropy) {
  const Tensor x = Random({60, 128}), weight = Random({500, 128}, 0.3), labels = at::randint(0, 1000, {60}, at::kLong);
  Tensor logits = Logits(x, weight), glogits = Logits(Gpu(x), Gpu(weight));
  ExpectClose(glogits, logits);
  const auto [lse, target] = CrossEntropy(logits, labels, 250);
  const auto [glse, gtarget] = CrossEntropy(Raw(logits), Raw(labels), 250);
  EXPECT_LE(RelativeError(glse, lse), 1e-6);
  EXPECT_LE(RelativeError(gtarget, target), 1e-6);
  Tensor scale = at::rand({60});
  scale[3] = 0;
  const Tensor d = CrossEntropyBackward(logits.clone(), labels, lse, scale, 250, at::kFloat);
  const Tensor gd = CrossEntropyBackward(Raw(logits), Raw(labels), Raw(lse), Raw(scale), 250, dtype());
  ExpectClose(gd, d);
  EXPECT_TRUE(at::equal(gd[3].cpu().to(at::kFloat), at::zeros({500})));
}

TEST_P(OpsGpuTest, WeightGradientsAccumulateInFp32) {
  const Tensor dy = Random({200, 96}), x = Random({200, 64});
  for (const bool accumulate : {false, true}) {
    Tensor grad = at::full({96, 64}, 3.0), ggrad = Raw(grad), bias = at::full({96}, 2.0), gbias = Raw(bias);
    if (!accumulate) ggrad.fill_(std::nan(""));
    MmAccumulate(grad, dy, x, accumulate);
    MmAccumulate(ggrad, Gpu(dy), Gpu(x), accumulate);
    EXPECT_LE(RelativeError(ggrad, grad), 1e-5);
    BiasGradAccumulate(bias, dy, accumulate);
    BiasGradAccumulate(gbias, Gpu(dy), accumulate);
    EXPECT_LE(RelativeError(gbias, bias), 1e-5);
  }
}

TEST_P(OpsGpuTest, AdamWAndTheSkipFlag) {
  const int64_t n = 4096 + 64;
  Tensor master = at::randn({n}), m = at::randn({n}) * 0.1, v = at::rand({n}) * 0.01;
  const Tensor grad = at::randn({n}), t = at::full({}, 7.0f), scale = at::full({}, 0.5f);
  EXPECT_NEAR(SumSquares(Raw(grad)).item<double>(), SumSquares(grad).item<double>(), 1e-5 * n);
  for (const float skip_value : {0.f, 1.f}) {
    const Tensor skip = at::full({}, skip_value);
    Tensor p1 = master.clone(), m1 = m.clone(), v1 = v.clone(), p2 = Raw(master), m2 = Raw(m), v2 = Raw(v);
    Tensor w1 = master.to(dtype()), w2 = Raw(master).to(dtype());
    AdamW(p1, m1, v1, grad, w1, t, scale, skip, 1e-2, 0.9, 0.95, 1e-8, 0.1);
    AdamW(p2, m2, v2, Raw(grad), w2, Raw(t), Raw(scale), Raw(skip), 1e-2, 0.9, 0.95, 1e-8, 0.1);
    EXPECT_LE(RelativeError(p2, p1), 1e-6);
    EXPECT_LE(RelativeError(m2, m1), 1e-6);
    EXPECT_LE(RelativeError(v2, v1), 1e-6);
    ExpectClose(w2, w1);
  }
}

TEST_P(OpsGpuTest, TheSameInputGivesTheSameBits) {
  const Tensor x = Gpu(Random({500, 896})), w = Gpu(Random({896})), dy = Gpu(Random({500, 896}));
  const Tensor ids = Raw(at::randint(0, 20, {500}, at::kLong));
  const auto [y, rstd] = RmsNorm(x, w, 1e-6);
  Tensor dw[2] = {at::zeros({896}, w.options().dtype(at::kFloat)), at::zeros({896}, w.options().dtype(at::kFloat))};
  Tensor de[2] = {at::zeros({20, 896}, dw[0].options()), at::zeros({20, 896}, dw[0].options())};
  for (int i = 0; i < 2; ++i) {
    RmsNormBackward(dy, x, w, rstd, std::nullopt, dw[i], false);
    EmbeddingBackward(dy, ids, 0, de[i], false);
  }
  EXPECT_TRUE(at::equal(dw[0], dw[1]));
  EXPECT_TRUE(at::equal(de[0], de[1]));
}

TEST_P(OpsGpuTest, GroupedProducts) {
  // Sizes that the kernel takes and sizes that it does not; empty groups; rows of nobody at the end.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 64}, {20, 12}}) {
    const Tensor ends = at::tensor(std::vector<int32_t>{5, 5, 37, 40}, at::kInt), w = Random({4, n, k});
    const Tensor x = Random({43, k}), dy = Random({43, n});
    const Tensor y = GroupedMm(x, w, ends, true), dx = GroupedMm(dy, w, ends, false);
    ExpectClose(GroupedMm(Gpu(x), Gpu(w), Raw(ends), true).narrow(0, 0, 40), y.narrow(0, 0, 40));
    ExpectClose(GroupedMm(Gpu(dy), Gpu(w), Raw(ends), false).narrow(0, 0, 40), dx.narrow(0, 0, 40));
    for (const bool accumulate : {false, true}) {
      Tensor dw = at::full({4, n, k}, 0.5), gdw = Raw(dw);
      GroupedMmAccumulate(dw, dy, x, ends, accumulate);
      GroupedMmAccumulate(gdw, Gpu(dy), Gpu(x), Raw(ends), accumulate);
      ExpectClose(gdw, dw);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OpsGpuTest, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& type) { return type.param == at::kBFloat16 ? "bf16" : "fp32"; });

}  // namespace
}  // namespace slipway::engine::ops
