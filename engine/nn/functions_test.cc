// Every Function against torch's own autograd, in fp64 and fp32: outputs, input gradients, main gradients over two
// micro-batches and two steps, and frozen parameters.
#include "engine/nn/functions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/nn/local_param_handle.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::RelativeError;
using ::slipway::testing::TensorNear;
using Tensors = std::vector<at::Tensor>;
using LocalPtr = c10::intrusive_ptr<LocalParamHandle>;
using Ours = std::function<at::Tensor(const Tensors& inputs, const std::vector<ParamPtr>& params)>;
using Theirs = std::function<at::Tensor(const Tensors& inputs, const Tensors& weights)>;

at::Tensor Random(at::IntArrayRef shape, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

struct Case {
  at::ScalarType dtype;
  bool frozen;
  double tolerance;
};

// `shapes` are of the differentiable inputs and of the weights.
void Check(const std::vector<std::vector<int64_t>>& input_shapes,
           const std::vector<std::vector<int64_t>>& weight_shapes, const Ours& ours, const Theirs& theirs) {
  for (const Case& c : {Case{at::kDouble, false, 1e-10}, Case{at::kFloat, false, 1e-5}, Case{at::kFloat, true, 1e-5}}) {
    SCOPED_TRACE(::testing::Message() << c.dtype << (c.frozen ? " frozen" : ""));
    std::vector<LocalPtr> handles;
    std::vector<ParamPtr> params;
    Tensors weights;
    for (size_t i = 0; i < weight_shapes.size(); ++i) {
      const at::Tensor weight = Random(weight_shapes[i], 100 + static_cast<int>(i)).to(c.dtype);
      handles.push_back(c10::make_intrusive<LocalParamHandle>("weight", weight, !c.frozen));
      params.push_back(handles.back());
      weights.push_back(weight.clone().requires_grad_());
    }
    for (int step = 0; step < 2; ++step) {
      for (const LocalPtr& handle : handles) handle->BeginStep();
      for (at::Tensor& weight : weights) weight.mutable_grad() = at::Tensor();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        Tensors mine, its;
        for (size_t i = 0; i < input_shapes.size(); ++i) {
          const at::Tensor input = Random(input_shapes[i], 1000 * step + 100 * micro_batch + static_cast<int>(i));
          mine.push_back(input.to(c.dtype).requires_grad_());
          its.push_back(input.to(c.dtype).requires_grad_());
        }
        const at::Tensor y = ours(mine, params), expected = theirs(its, weights);
        EXPECT_THAT(y, TensorNear(expected, c.tolerance));
        const at::Tensor dy = Random(y.sizes(), 7 + micro_batch).to(y.scalar_type());
        y.backward(dy);
        expected.backward(dy.to(expected.scalar_type()));
        for (size_t i = 0; i < mine.size(); ++i) EXPECT_THAT(mine[i].grad(), TensorNear(its[i].grad(), c.tolerance));
      }
      for (size_t i = 0; i < handles.size(); ++i) {
        EXPECT_EQ(handles[i]->registered_uses(), handles[i]->ended_uses());
        EXPECT_EQ(handles[i]->held(), 0);
        if (c.frozen) {
          EXPECT_FALSE(handles[i]->main_grad().defined());
        } else {
          EXPECT_THAT(handles[i]->main_grad(), TensorNear(weights[i].grad(), c.tolerance)) << "weight " << i;
        }
      }
    }
  }
}

SequenceLayout TwoRowsAndPadding() { return MakeSequenceLayout({5, 3, 0}, {7, 9, 0}, 10, at::kCPU); }

TEST(FunctionsTest, Linear) {
  Check(
      {{6, 5}}, {{4, 5}}, [](auto& x, auto& p) { return Linear(x[0], p[0]); },
      [](auto& x, auto& w) { return at::linear(x[0], w[0]); });
  Check(
      {{6, 5}}, {{4, 5}, {4}}, [](auto& x, auto& p) { return Linear(x[0], p[0], p[1]); },
      [](auto& x, auto& w) { return at::linear(x[0], w[0], w[1]); });
}

TEST(FunctionsTest, TwoUsesOfOneParameterSum) {
  Check(
      {{6, 5}}, {{5, 5}}, [](auto& x, auto& p) { return Linear(Linear(x[0], p[0]), p[0]); },
      [](auto& x, auto& w) { return at::linear(at::linear(x[0], w[0]), w[0]); });
}

TEST(FunctionsTest, ParameterGradientWithoutInputGradient) {
  const auto handle = c10::make_intrusive<LocalParamHandle>("w", Random({4, 5}, 1), true);
  const at::Tensor x = Random({6, 5}, 2);
  Linear(x, handle).backward(at::ones({6, 4}, at::kDouble));
  EXPECT_THAT(handle->main_grad(), TensorNear(at::ones({4, 6}, at::kDouble).mm(x), 1e-12));
}

TEST(FunctionsTest, NothingIsRegisteredWithoutGradMode) {
  const auto handle = c10::make_intrusive<LocalParamHandle>("w", Random({4, 5}, 1), true);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(Linear(Random({6, 5}, 2), handle).requires_grad());
  EXPECT_EQ(handle->registered_uses(), 0);
  EXPECT_EQ(handle->held(), 0);
}

TEST(FunctionsTest, Embedding) {
  const at::Tensor ids = at::tensor({3, 0, 3, 6, 2, 3}, at::kLong);
  Check(
      {{6, 4}}, {{7, 4}}, [&](auto& x, auto& p) { return Embedding(ids, p[0], 0) * x[0]; },
      [&](auto& x, auto& w) { return at::embedding(w[0], ids) * x[0]; });
}

TEST(FunctionsTest, EmbeddingShardsAddUpToTheTable) {
  const at::Tensor ids = at::tensor({3, 0, 5}, at::kLong), table = Random({6, 4}, 1);
  const auto low = c10::make_intrusive<LocalParamHandle>("low", table.narrow(0, 0, 3), true);
  const auto high = c10::make_intrusive<LocalParamHandle>("high", table.narrow(0, 3, 3), true);
  const at::Tensor rows = Embedding(ids, low, 0) + Embedding(ids, high, 1);
  EXPECT_THAT(rows, TensorNear(at::embedding(table, ids), 0.0));
  rows.backward(at::ones_like(rows));
  EXPECT_THAT(low->main_grad().sum(1), TensorNear(at::tensor({4.0, 0.0, 0.0}, at::kDouble), 0.0));
  EXPECT_THAT(high->main_grad().sum(1), TensorNear(at::tensor({4.0, 0.0, 4.0}, at::kDouble), 0.0));
}

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x * at::rsqrt(x.square().mean(-1, true) + epsilon) * weight;
}

TEST(FunctionsTest, RmsNorm) {
  Check(
      {{6, 5}}, {{5}}, [](auto& x, auto& p) { return RmsNorm(x[0], p[0], 1e-3); },
      [](auto& x, auto& w) { return PlainNorm(x[0], w[0], 1e-3); });
}

TEST(FunctionsTest, AddRmsNorm) {
  const auto both = [](const at::Tensor& sum, const at::Tensor& normed) { return at::cat({sum * 2, normed.sin()}, 1); };
  Check(
      {{6, 5}, {6, 5}}, {{5}},
      [&](auto& x, auto& p) {
        const Joined joined = AddRmsNorm(x[0], x[1], p[0], 1e-3);
        return both(joined.sum, joined.normed);
      },
      [&](auto& x, auto& w) {
        const at::Tensor sum = x[0] + x[1];
        return both(sum, PlainNorm(sum, w[0], 1e-3));
      });
}

// One reader of only one of the two results.
TEST(FunctionsTest, AddRmsNormWithAnUnusedResult) {
  Check(
      {{6, 5}, {6, 5}}, {{5}}, [](auto& x, auto& p) { return AddRmsNorm(x[0], x[1], p[0], 1e-3).normed; },
      [](auto& x, auto& w) { return PlainNorm(x[0] + x[1], w[0], 1e-3); });
}

TEST(FunctionsTest, SwiGlu) {
  Check(
      {{6, 8}}, {}, [](auto& x, auto&) { return SwiGlu(x[0]); },
      [](auto& x, auto&) { return at::silu(x[0].narrow(1, 0, 4)) * x[0].narrow(1, 4, 4); });
}

at::Tensor PlainRope(const at::Tensor& heads, const SequenceLayout& layout, const at::Tensor& frequencies) {
  const at::Tensor angles = layout.positions.to(heads.scalar_type()).unsqueeze(1) * frequencies.to(heads.scalar_type());
  const at::Tensor cos = at::cat({angles, angles}, 1).cos().unsqueeze(1);
  const at::Tensor sin = at::cat({angles, angles}, 1).sin().unsqueeze(1);
  const int64_t half = heads.size(2) / 2;
  return heads * cos + at::cat({-heads.narrow(2, half, half), heads.narrow(2, 0, half)}, 2) * sin;
}

TEST(FunctionsTest, Rope) {
  const SequenceLayout layout = TwoRowsAndPadding();
  const at::Tensor frequencies = at::tensor({1.0f, 0.1f, 0.01f});
  Check(
      {{10, 7 * 6}}, {}, [&](auto& x, auto&) { return Rope(x[0] * 1, layout, frequencies, {.heads = 3, .groups = 2}); },
      [&](auto& x, auto&) {
        const at::Tensor heads = x[0].view({10, 7, 6});
        return at::cat({PlainRope(heads.narrow(1, 0, 5), layout, frequencies), heads.narrow(1, 5, 2)}, 1)
            .view({10, 42});
      });
}

TEST(FunctionsTest, QkNormRope) {
  const SequenceLayout layout = TwoRowsAndPadding();
  const at::Tensor frequencies = at::tensor({1.0f, 0.1f, 0.01f});
  Check(
      {{10, 7 * 6}}, {{6}, {6}},
      [&](auto& x, auto& p) {
        return QkNormRope(x[0], p[0], p[1], 1e-3, layout, frequencies, {.heads = 3, .groups = 2});
      },
      [&](auto& x, auto& w) {
        const at::Tensor heads = x[0].view({10, 7, 6});
        const at::Tensor q = PlainNorm(heads.narrow(1, 0, 3), w[0], 1e-3);
        const at::Tensor k = PlainNorm(heads.narrow(1, 3, 2), w[1], 1e-3);
        return at::cat({PlainRope(q, layout, frequencies), PlainRope(k, layout, frequencies), heads.narrow(1, 5, 2)}, 1)
            .view({10, 42});
      });
}

// Row by row with the probabilities written out; mask(head) multiplies them.
at::Tensor PlainAttention(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts,
                          const std::function<at::Tensor(int64_t begin, int64_t n, int64_t head)>& mask = {}) {
  const int64_t tokens = qkv.size(0), all = counts.heads + 2 * counts.groups, size = qkv.size(1) / all;
  const at::Tensor heads = qkv.view({tokens, all, size});
  Tensors rows;
  for (size_t r = 0; r + 1 < layout.cu_seqlens_host.size(); ++r) {
    const int64_t begin = layout.cu_seqlens_host[r], n = layout.cu_seqlens_host[r + 1] - begin;
    Tensors columns;
    for (int64_t head = 0; head < counts.heads; ++head) {
      const int64_t group = head / (counts.heads / counts.groups);
      const at::Tensor row = heads.narrow(0, begin, n);
      const at::Tensor q = row.select(1, head), k = row.select(1, counts.heads + group);
      const at::Tensor v = row.select(1, counts.heads + counts.groups + group);
      const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
      at::Tensor p =
          at::softmax((q.mm(k.t()) / std::sqrt(static_cast<double>(size))).masked_fill(future, -INFINITY), 1);
      if (mask) p = p * mask(begin, n, head);
      columns.push_back(p.mm(v));
    }
    rows.push_back(at::cat(columns, 1));
  }
  return at::cat(rows, 0);
}

TEST(FunctionsTest, AttentionOverRowsOfDifferentLength) {
  const SequenceLayout layout = TwoRowsAndPadding();
  Check(
      {{10, 8 * 6}}, {}, [&](auto& x, auto&) { return Attention(x[0], layout, {.heads = 4, .groups = 2}); },
      [&](auto& x, auto&) { return PlainAttention(x[0], layout, {.heads = 4, .groups = 2}); });
}

TEST(FunctionsTest, AttentionOverUniformRows) {
  const SequenceLayout layout = MakeSequenceLayout({4, 4, 4}, {0, 1, 2}, 12, at::kCPU);
  ASSERT_TRUE(layout.uniform);
  Check(
      {{12, 5 * 6}}, {}, [&](auto& x, auto&) { return Attention(x[0], layout, {.heads = 3, .groups = 1}); },
      [&](auto& x, auto&) { return PlainAttention(x[0], layout, {.heads = 3, .groups = 1}); });
}

at::Tensor PlainLoss(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights) {
  const at::Tensor loss = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
  return (loss * weights.to(loss.scalar_type())).sum();
}

TEST(FunctionsTest, LinearCrossEntropyInOneAndInSeveralChunks) {
  const at::Tensor labels = at::tensor({1, 6, 0, 3, 3, 2, 5}, at::kLong);
  const at::Tensor weights = at::tensor({1.0f, 0.5f, 0.0f, 1.0f, 2.0f, 0.0f, 1.0f});
  for (const int64_t chunk_elements : {1000, 3 * 9, 1}) {
    // Rows 7 and 8 are padding: outside of every softmax, and without gradient.
    const VocabularyOptions options{
        .vocab_size = 7, .group = comm::MakeSelfCommunicator("tp"), .chunk_elements = chunk_elements};
    const auto ours = [&](const Tensors& x, const std::vector<ParamPtr>& p) {
      return LinearCrossEntropy(x[0], labels, weights, p[0], options);
    };
    Check({{7, 5}}, {{7, 5}}, ours,
          [&](auto& x, auto& w) { return PlainLoss(at::linear(x[0], w[0]), labels, weights); });

    const at::Tensor table = Random({9, 5}, 3);
    const auto padded = c10::make_intrusive<LocalParamHandle>("padded", table, true);
    const auto exact = c10::make_intrusive<LocalParamHandle>("exact", table.narrow(0, 0, 7), true);
    const at::Tensor x = Random({7, 5}, 4);
    const at::Tensor with = ours({x}, {padded}), without = ours({x}, {exact});
    EXPECT_EQ(with.item<double>(), without.item<double>());
    with.backward();
    without.backward();
    EXPECT_THAT(padded->main_grad().narrow(0, 0, 7), TensorNear(exact->main_grad(), 0.0));
    EXPECT_TRUE(padded->main_grad().narrow(0, 7, 2).isnan().all().item<bool>()) << "padding rows are never written";
  }
}

TEST(FunctionsTest, TokensWithoutWeightDoNotCountWhateverTheyHold) {
  const auto weight = c10::make_intrusive<LocalParamHandle>("w", Random({7, 5}, 3).to(at::kFloat), true);
  const VocabularyOptions options{.vocab_size = 7, .group = comm::MakeSelfCommunicator("tp")};
  at::Tensor x = Random({2, 5}, 4).to(at::kFloat);
  x[1].fill_(INFINITY);
  x.requires_grad_();
  const at::Tensor loss =
      LinearCrossEntropy(x, at::tensor({1, -100}, at::kLong), at::tensor({1.0f, 0.0f}), weight, options);
  EXPECT_TRUE(std::isfinite(loss.item<float>()));
  loss.backward();
  EXPECT_TRUE(x.grad()[0].isfinite().all().item<bool>());
}

TEST(FunctionsTest, ABatchWithoutWeightGivesZeroAndZeroGradients) {
  const auto weight = c10::make_intrusive<LocalParamHandle>("w", Random({7, 5}, 3), true);
  const VocabularyOptions options{.vocab_size = 7, .group = comm::MakeSelfCommunicator("tp")};
  const at::Tensor x = Random({3, 5}, 4).requires_grad_();
  const at::Tensor loss =
      LinearCrossEntropy(x, at::zeros({3}, at::kLong), at::zeros({3}, at::kDouble), weight, options);
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_THAT(x.grad(), TensorNear(at::zeros({3, 5}, at::kDouble), 0.0));
  EXPECT_THAT(weight->main_grad(), TensorNear(at::zeros({7, 5}, at::kDouble), 0.0));
  EXPECT_EQ(weight->registered_uses(), weight->ended_uses());
}

TEST(FunctionsTest, LogitsAreThoseOfTheLoss) {
  const auto weight = c10::make_intrusive<LocalParamHandle>("w", Random({9, 5}, 3), true);
  const VocabularyOptions options{.vocab_size = 7, .group = comm::MakeSelfCommunicator("tp")};
  const at::Tensor x = Random({2, 5}, 4), labels = at::tensor({1, 3}, at::kLong), weights = at::ones({2}, at::kDouble);
  const at::Tensor logits = VocabularyLogits(x, weight, options);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({2, 7}));
  EXPECT_NEAR(LinearCrossEntropy(x, labels, weights, weight, options).item<double>(),
              PlainLoss(logits, labels, weights).item<double>(), 1e-12);
}

}  // namespace
}  // namespace slipway::engine::nn
