// Dropout: what it computes given its mask, and that the mask depends on nothing but what it is keyed by.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/nn/functions.h"
#include "engine/ops/ops.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;

constexpr DropoutSite kSite{.probability = 0.25, .seed = 11, .step = 3, .site = 5};

at::Tensor MaskOf(const SequenceLayout& layout, int64_t features, const DropoutSite& site) {
  return ops::DropoutMask(layout.sample_index, layout.positions, features, site.probability,
                          static_cast<int64_t>(site.seed), site.step, site.site);
}

TEST(DropoutTest, KeepsAboutTheRightShareAndTheMean) {
  const SequenceLayout layout = MakeSequenceLayout({200}, {0}, 200, at::kCPU);
  const at::Tensor mask = MaskOf(layout, 501, kSite);
  EXPECT_NEAR((mask == 0).to(at::kFloat).mean().item<float>(), 0.25, 0.01);
  EXPECT_NEAR(mask.mean().item<float>(), 1.0, 0.01);
  EXPECT_NEAR(mask.max().item<float>(), 1 / 0.75f, 1e-6);
}

TEST(DropoutTest, AMaskBelongsToSampleAndPositionNotToTheBatch) {
  const SequenceLayout together = MakeSequenceLayout({5, 3}, {7, 9}, 8, at::kCPU);
  const SequenceLayout alone = MakeSequenceLayout({3}, {9}, 3, at::kCPU);
  EXPECT_THAT(MaskOf(together, 6, kSite).narrow(0, 5, 3), TensorEqual(MaskOf(alone, 6, kSite)));
}

TEST(DropoutTest, EachPartOfTheKeyMatters) {
  const SequenceLayout layout = MakeSequenceLayout({16}, {7}, 16, at::kCPU);
  const at::Tensor mask = MaskOf(layout, 16, kSite);
  DropoutSite other = kSite;
  other.seed += 1;
  EXPECT_FALSE(at::equal(mask, MaskOf(layout, 16, other)));
  other = kSite;
  other.step += 1;
  EXPECT_FALSE(at::equal(mask, MaskOf(layout, 16, other)));
  other = kSite;
  other.site += 1;
  EXPECT_FALSE(at::equal(mask, MaskOf(layout, 16, other)));
  EXPECT_FALSE(at::equal(mask, MaskOf(MakeSequenceLayout({16}, {8}, 16, at::kCPU), 16, kSite)));
  EXPECT_FALSE(at::equal(mask[0], mask[1]));
}

TEST(DropoutTest, AddDropoutAndItsGradients) {
  const SequenceLayout layout = MakeSequenceLayout({4, 2}, {7, 9}, 6, at::kCPU);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const at::Tensor residual = at::randn({6, 10}, type).requires_grad_(),
                     y = at::randn({6, 10}, type).requires_grad_();
    const at::Tensor out = AddDropout(residual, y, layout, kSite), dout = at::randn({6, 10}, type);
    const at::Tensor mask = MaskOf(layout, 10, kSite).to(type);
    EXPECT_THAT(out, TensorNear(residual + y * mask, 1e-6));
    out.backward(dout);
    EXPECT_THAT(residual.grad(), TensorNear(dout, 0.0));
    EXPECT_THAT(y.grad(), TensorNear(dout * mask, 1e-6));
  }
}

TEST(DropoutTest, ZeroProbabilityIsPlainAddition) {
  const SequenceLayout layout = MakeSequenceLayout({6}, {0}, 6, at::kCPU);
  const at::Tensor a = at::randn({6, 4}), b = at::randn({6, 4});
  EXPECT_THAT(AddDropout(a, b, layout, {}), TensorEqual(a + b));
}

// Against torch's autograd over the same masks.
TEST(DropoutTest, AttentionWithDropout) {
  const SequenceLayout layout = MakeSequenceLayout({5, 3}, {7, 9}, 10, at::kCPU);
  const HeadCounts counts{.heads = 4, .groups = 2};
  const int64_t first_head = 4;
  const at::Tensor mine = at::randn({10, 8 * 6}, at::kDouble).requires_grad_();
  const at::Tensor its = mine.detach().clone().requires_grad_();
  const at::Tensor out = AttentionWithDropout(mine, layout, counts, first_head, kSite);

  std::vector<at::Tensor> rows;
  const at::Tensor heads = its.view({10, 8, 6});
  for (size_t r = 0; r + 1 < layout.cu_seqlens_host.size(); ++r) {
    const int64_t begin = layout.cu_seqlens_host[r], n = layout.cu_seqlens_host[r + 1] - begin;
    std::vector<at::Tensor> columns;
    for (int64_t head = 0; head < 4; ++head) {
      const at::Tensor row = heads.narrow(0, begin, n);
      const at::Tensor scores = row.select(1, head).mm(row.select(1, 4 + head / 2).t()) / std::sqrt(6.0);
      const at::Tensor p = at::softmax(scores.masked_fill(at::ones({n, n}, at::kBool).triu(1), -INFINITY), 1);
      const at::Tensor mask =
          ops::DropoutMask(layout.sample_index.narrow(0, begin, n), layout.positions.narrow(0, begin, n), n, 0.25, 11,
                           3, ((first_head + head + 1) << 32) | 5);
      columns.push_back((p * mask).mm(row.select(1, 6 + head / 2)));
    }
    rows.push_back(at::cat(columns, 1));
  }
  const at::Tensor expected = at::cat(rows, 0);
  EXPECT_THAT(out, TensorNear(expected, 1e-12));
  const at::Tensor dout = at::randn_like(out);
  out.backward(dout);
  expected.backward(dout);
  EXPECT_THAT(mine.grad(), TensorNear(its.grad(), 1e-12));
}

}  // namespace
}  // namespace slipway::engine::nn
