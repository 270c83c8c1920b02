// The operations of a layer of experts against plain ATen, with gradients.
#include "engine/nn/moe_functions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "engine/comm/thread_communicator.h"
#include "engine/nn/local_param_handle.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;

at::Tensor Random(at::IntArrayRef shape, int seed, at::ScalarType type = at::kDouble) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble).to(type);
}

auto Handle(const at::Tensor& weight) { return c10::make_intrusive<LocalParamHandle>("weight", weight, true); }

at::Tensor Ends(std::vector<int32_t> ends) { return at::tensor(at::ArrayRef<int32_t>(ends), at::kInt); }

// The same product, group by group.
at::Tensor PlainGrouped(const at::Tensor& x, const at::Tensor& weight, const std::vector<int32_t>& ends) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t g = 0; g < ends.size(); ++g) {
    parts.push_back(x.narrow(0, begin, ends[g] - begin).matmul(weight[static_cast<int64_t>(g)].t()));
    begin = ends[g];
  }
  return at::cat(parts);
}

TEST(MoeFunctionsTest, RouterLogitsAreALinearInFp32) {
  const auto handle = Handle(Random({6, 5}, 1));
  const at::Tensor weight = Random({6, 5}, 1).requires_grad_(), x = Random({4, 5}, 2).requires_grad_();
  const at::Tensor mine = x.detach().clone().requires_grad_(), dy = Random({4, 6}, 3);
  const at::Tensor logits = RouterLogits(mine, handle), expected = at::linear(x, weight);
  EXPECT_THAT(logits, TensorNear(expected, 1e-12));
  logits.backward(dy);
  expected.backward(dy);
  EXPECT_THAT(mine.grad(), TensorNear(x.grad(), 1e-12));
  EXPECT_THAT(handle->main_grad(), TensorNear(weight.grad(), 1e-12));
  const at::Tensor low = RouterLogits(Random({4, 5}, 2, at::kBFloat16), Handle(Random({6, 5}, 1, at::kBFloat16)));
  EXPECT_EQ(low.scalar_type(), at::kFloat);
}

TEST(MoeFunctionsTest, GroupedLinearEqualsOneProductAGroup) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}}) {
    for (const std::vector<int32_t>& ends : {std::vector<int32_t>{3, 3, 7}, {0, 5, 7}, {7, 7, 7}}) {
      const at::Tensor whole = Random({3, 4, 5}, 1, type);
      const auto handle = Handle(whole.view({12, 5}));
      const at::Tensor weight = whole.clone().requires_grad_();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const at::Tensor x = Random({7, 5}, 10 + micro_batch, type).requires_grad_();
        const at::Tensor mine = x.detach().clone().requires_grad_(), dy = Random({7, 4}, 20 + micro_batch, type);
        const at::Tensor y = GroupedLinear(mine, handle, Ends(ends)), expected = PlainGrouped(x, weight, ends);
        EXPECT_THAT(y, TensorNear(expected, tolerance));
        y.backward(dy);
        expected.backward(dy);
        EXPECT_THAT(mine.grad(), TensorNear(x.grad(), tolerance));
      }
      EXPECT_THAT(handle->main_grad().view({3, 4, 5}), TensorNear(weight.grad(), tolerance));
      EXPECT_EQ(handle->registered_uses(), handle->ended_uses());
      EXPECT_EQ(handle->held(), 0);
    }
  }
}

TEST(MoeFunctionsTest, RowsPastTheLastGroupTouchNothing) {
  const auto handle = Handle(Random({6, 5}, 1));
  at::Tensor x = Random({4, 5}, 2);
  x.narrow(0, 3, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  at::Tensor dy = Random({4, 3}, 3);
  dy.narrow(0, 3, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  x.requires_grad_();
  const at::Tensor y = GroupedLinear(x, handle, Ends({1, 3}));
  y.backward(dy);
  EXPECT_TRUE(y.narrow(0, 0, 3).isfinite().all().item<bool>());
  EXPECT_TRUE(x.grad().narrow(0, 0, 3).isfinite().all().item<bool>());
  EXPECT_TRUE(handle->main_grad().isfinite().all().item<bool>());
}

TEST(MoeFunctionsTest, NoRowsAtAllGiveAZeroGradient) {
  const auto handle = Handle(Random({6, 5}, 1));
  const at::Tensor x = at::empty({0, 5}, at::kDouble).requires_grad_();
  GroupedLinear(x, handle, Ends({0, 0})).sum().backward();
  EXPECT_THAT(handle->main_grad(), TensorEqual(at::zeros({6, 5}, at::kDouble)));
}

TEST(MoeFunctionsTest, SpreadAndCollectAreConjugate) {
  const RowMap map{at::tensor({2, 0, 2, 1, 1}, at::kLong), at::tensor({1, -1, 3, -1, 2, 0}, at::kLong).view({3, 2})};
  const at::Tensor x = Random({3, 4}, 1).requires_grad_(), y = Random({5, 4}, 2).requires_grad_();
  const at::Tensor spread = SpreadRows(x, map), collected = CollectRows(y, map);
  EXPECT_THAT(spread, TensorEqual(x.detach().index_select(0, map.rows)));
  const at::Tensor rows = y.detach();
  EXPECT_THAT(collected, TensorNear(at::stack({rows[1], rows[3], rows[2] + rows[0]}), 1e-14));
  const at::Tensor dspread = Random({5, 4}, 3), dcollected = Random({3, 4}, 4);
  spread.backward(dspread);
  collected.backward(dcollected);
  EXPECT_THAT(x.grad(), TensorNear(at::stack({dspread[1], dspread[3], dspread[2] + dspread[0]}), 1e-14));
  EXPECT_THAT(y.grad(), TensorEqual(dcollected.index_select(0, map.rows)));
}

TEST(MoeFunctionsTest, EmptyRowsAreZeroAndGiveNothing) {
  const RowMap map{at::tensor({1, -1, 0}, at::kLong), at::tensor({2, 0}, at::kLong).view({2, 1}), true};
  const at::Tensor x = Random({2, 4}, 1).requires_grad_(), y = Random({3, 4}, 2).requires_grad_();
  EXPECT_THAT(SpreadRows(x, map)[1], TensorEqual(at::zeros({4}, at::kDouble)));
  CollectRows(y, map).sum().backward();
  EXPECT_THAT(y.grad().select(1, 0), TensorEqual(at::tensor({1.0, 0.0, 1.0}, at::kDouble)));
}

TEST(MoeFunctionsTest, ExchangedRowsComeBackAsGradients) {
  comm::RunRanks(2, [](int rank, comm::GroupFactory& factory) {
    const comm::CommPtr group = factory.MakeGroup("ep", {0, 1});
    // Rank 0 sends one row to itself and two to rank 1; rank 1 sends everything to rank 0.
    const std::vector<int64_t> send = rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 0};
    const std::vector<int64_t> receive = rank == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 0};
    const at::Tensor x = (at::arange(rank == 0 ? 3 : 1, at::kDouble) + 10 * rank).unsqueeze(1).requires_grad_();
    const at::Tensor received = ExchangeRows(x, group, send, receive);
    const at::Tensor expected = rank == 0 ? at::tensor({0.0, 10.0}, at::kDouble) : at::tensor({1.0, 2.0}, at::kDouble);
    EXPECT_THAT(received.squeeze(1), TensorEqual(expected));
    (received * received).sum().backward();
    EXPECT_THAT(x.grad(), TensorEqual(2 * x.detach()));
  });
}

TEST(MoeFunctionsTest, AnAttachedLossIsTrainedByItsScaleAlone) {
  const at::Tensor x = Random({3}, 1).requires_grad_(), inner = Random({3}, 2).requires_grad_();
  const at::Tensor out = AttachLoss(x, inner.square().sum(), 0.25);
  EXPECT_THAT(out, TensorEqual(x.detach()));
  (out * 100).sum().backward();
  EXPECT_THAT(x.grad(), TensorEqual(at::full({3}, 100.0, at::kDouble)));
  EXPECT_THAT(inner.grad(), TensorNear(0.5 * inner.detach(), 1e-14));
}

TEST(MoeFunctionsTest, AnAttachedCountIsSummedLikeAGradient) {
  const auto handle = Handle(at::zeros({2}));
  const at::Tensor x = Random({3}, 1).requires_grad_();
  for (const double count : {1.0, 2.0}) AttachCount(x, at::full({2}, count), handle).sum().backward();
  EXPECT_THAT(handle->main_grad(), TensorEqual(at::full({2}, 3.0f)));
  const at::NoGradGuard no_grad;
  AttachCount(x, at::ones({2}), handle);
  EXPECT_EQ(handle->registered_uses(), handle->ended_uses());
}

}  // namespace
}  // namespace slipway::engine::nn
