// Routing, capacity and the router's losses against plain loops, and gradients against differences in fp64.
#include "engine/nn/moe_router.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/nn/sequence_layout.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using arch::DropPolicy;
using arch::LoadBalancing;
using arch::MoeArch;
using arch::RouterScore;
using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;

constexpr int64_t kTokens = 10, kExperts = 6;

at::Tensor Random(at::IntArrayRef shape, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

MoeArch Moe() { return {.num_experts = kExperts, .topk = 2, .ffn_hidden_size = 4}; }
at::Tensor AllReal() { return at::ones({kTokens}, at::kBool); }

LoadBalanceGroups Alone() {
  return {.sample = comm::MakeSelfCommunicator("tp-cp"), .batch = comm::MakeSelfCommunicator("tp-dp-cp")};
}

TEST(MoeRouterTest, SoftmaxOverTheChosenEqualsRenormalising) {
  const at::Tensor logits = Random({kTokens, kExperts}, 1);
  const Routing routing = ChooseExperts(logits, {}, AllReal(), Moe());
  const at::Tensor all = at::softmax(logits, 1);
  const auto [top, index] = all.topk(2, 1);
  EXPECT_THAT(routing.experts, TensorEqual(index));
  EXPECT_THAT(routing.probs, TensorNear(top / top.sum(1, true), 1e-12));
  MoeArch pre = Moe();
  pre.pre_softmax = true;
  pre.topk_scaling_factor = 2.5;
  EXPECT_THAT(ChooseExperts(logits, {}, AllReal(), pre).probs, TensorNear(2.5 * top, 1e-12));
}

TEST(MoeRouterTest, ABiasChangesTheChoiceAndNotTheWeights) {
  MoeArch moe = Moe();
  moe.score_function = RouterScore::kSigmoid;
  const at::Tensor logits = Random({kTokens, kExperts}, 1);
  const at::Tensor bias = at::tensor({0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 2.0f});
  const Routing routing = ChooseExperts(logits, bias, AllReal(), moe);
  EXPECT_TRUE((routing.experts == 5).any(1).all().item<bool>());
  const at::Tensor scores = at::sigmoid(logits).gather(1, routing.experts);
  EXPECT_THAT(routing.probs, TensorNear(scores / scores.sum(1, true), 1e-12));
}

TEST(MoeRouterTest, GroupsLimitTheChoice) {
  MoeArch moe{.num_experts = 6, .topk = 2, .ffn_hidden_size = 4};
  moe.num_groups = 3;
  moe.group_topk = 1;
  // The best single expert is 0, but the group of 2 and 3 is better by the sum of its two.
  const at::Tensor logits = at::tensor({5.0, -5.0, 4.0, 3.0, 0.0, 0.0}, at::kDouble).unsqueeze(0);
  const Routing routing = ChooseExperts(logits, {}, at::ones({1}, at::kBool), moe);
  EXPECT_THAT(routing.experts, TensorEqual(at::tensor({2, 3}, at::kLong).unsqueeze(0)));
}

TEST(MoeRouterTest, PaddingGoesNowhere) {
  at::Tensor real = AllReal();
  real[9] = false;
  const Routing routing = ChooseExperts(Random({kTokens, kExperts}, 1), {}, real, Moe());
  EXPECT_THAT(routing.experts[9], TensorEqual(at::full({2}, kExperts, at::kLong)));
  EXPECT_THAT(routing.probs[9], TensorEqual(at::zeros({2}, at::kDouble)));
  EXPECT_EQ(CountSlots(routing.experts, kExperts, at::kDouble).sum().item<double>(), 18);
}

// What stays when an expert takes `capacity` tokens: plainly.
std::vector<std::vector<bool>> Kept(const Routing& routing, int64_t capacity, DropPolicy policy) {
  std::vector<std::vector<bool>> kept(kTokens, std::vector<bool>(2, false));
  for (int64_t e = 0; e < kExperts; ++e) {
    using Slot = std::pair<int64_t, int64_t>;
    std::vector<Slot> slots;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t k = 0; k < 2; ++k) {
        if (routing.experts[t][k].item<int64_t>() == e) slots.emplace_back(t, k);
      }
    }
    if (policy == DropPolicy::kProbs) {
      std::stable_sort(slots.begin(), slots.end(), [&](const Slot& a, const Slot& b) {
        return routing.probs[a.first][a.second].item<double>() > routing.probs[b.first][b.second].item<double>();
      });
    }
    for (size_t i = 0; i < slots.size() && i < static_cast<size_t>(capacity); ++i) {
      kept[slots[i].first][slots[i].second] = true;
    }
  }
  return kept;
}

TEST(MoeRouterTest, DropsWhatIsOverCapacity) {
  at::Tensor real = AllReal();
  real[4] = false;
  for (const DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
    MoeArch moe = Moe();
    moe.drop_policy = policy;
    moe.capacity_factor = 0.6;
    const Routing routing = ChooseExperts(2 * Random({kTokens, kExperts}, 3), {}, real, moe);
    const int64_t capacity = ExpertCapacity(kTokens, moe);
    EXPECT_EQ(capacity, 2);  // ceil(10 * 2 / 6 * 0.6)
    const Routing dropped = DropOverCapacity(routing, capacity, moe);
    const auto kept = Kept(routing, capacity, policy);
    int64_t lost = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t k = 0; k < 2; ++k) {
        const int64_t before = routing.experts[t][k].item<int64_t>();
        EXPECT_EQ(dropped.experts[t][k].item<int64_t>(), kept[t][k] ? before : kExperts) << t << " " << k;
        EXPECT_EQ(dropped.probs[t][k].item<double>(), kept[t][k] ? routing.probs[t][k].item<double>() : 0);
        lost += before != kExperts && !kept[t][k];
      }
    }
    EXPECT_GT(lost, 0);
  }
}

struct Scene {
  at::Tensor logits;
  SequenceLayout layout;
  at::Tensor Membership() const { return SampleMembership(layout.row_samples, layout.sample_index, at::kDouble); }
};
// Two samples, an empty row and two tokens of padding.
Scene TwoSamples() {
  return {Random({kTokens, kExperts}, 5), MakeSequenceLayout({5, 3, 0}, {7, 9, 0}, kTokens, at::kCPU)};
}

double PlainBalance(const at::Tensor& logits, const MoeArch& moe) {
  const at::Tensor scores = at::softmax(logits, 1);
  const at::Tensor chosen = std::get<1>(scores.topk(moe.topk, 1));
  const double tokens = static_cast<double>(logits.size(0));
  double sum = 0;
  for (int64_t e = 0; e < moe.num_experts; ++e) {
    sum += scores.select(1, e).sum().item<double>() * (chosen == e).sum().item<double>();
  }
  return sum * moe.aux_loss_coeff * static_cast<double>(moe.num_experts) /
         (static_cast<double>(moe.topk) * tokens * tokens);
}

TEST(MoeRouterTest, LossesBySample) {
  MoeArch moe = Moe();
  moe.aux_loss_coeff = 0.3;
  moe.z_loss_coeff = 0.2;
  const Scene scene = TwoSamples();
  const RouterLosses losses = LoadBalance(moe, Alone()).Losses(scene.logits, scene.Membership(), 1);
  const at::Tensor first = scene.logits.narrow(0, 0, 5), second = scene.logits.narrow(0, 5, 3);
  EXPECT_NEAR(losses.balance.item<double>(), PlainBalance(first, moe) + PlainBalance(second, moe), 1e-12);
  const auto z = [](const at::Tensor& rows) { return at::logsumexp(rows, {1}).square().mean().item<double>(); };
  EXPECT_NEAR(losses.z.item<double>(), 0.2 * (z(first) + z(second)), 1e-12);
}

TEST(MoeRouterTest, LossesByMicroBatchAndByGlobalBatch) {
  MoeArch moe = Moe();
  moe.aux_loss_coeff = 0.3;
  moe.load_balancing = LoadBalancing::kMicroBatch;
  const Scene scene = TwoSamples();
  const at::Tensor real = scene.logits.narrow(0, 0, 8);
  const double of_batch = LoadBalance(moe, Alone()).Losses(scene.logits, scene.Membership(), 1).balance.item<double>();
  EXPECT_NEAR(of_batch, 2 * PlainBalance(real, moe), 1e-12);

  moe.load_balancing = LoadBalancing::kGlobalBatch;
  LoadBalance balance(moe, Alone());
  EXPECT_NEAR(balance.Losses(scene.logits, scene.Membership(), 1).balance.item<double>(), of_batch, 1e-12);
  // The second micro-batch sees the mean of both's counts; a new step starts anew.
  const Scene other{Random({kTokens, kExperts}, 6), scene.layout};
  const double second = balance.Losses(other.logits, other.Membership(), 1).balance.item<double>();
  const double alone = balance.Losses(other.logits, other.Membership(), 2).balance.item<double>();
  EXPECT_NEAR(alone, 2 * PlainBalance(other.logits.narrow(0, 0, 8), moe), 1e-12);
  EXPECT_GT(std::abs(second - alone), 1e-6);
}

TEST(MoeRouterTest, NoCoefficientNoLoss) {
  const Scene scene = TwoSamples();
  const RouterLosses losses = LoadBalance(Moe(), Alone()).Losses(scene.logits, scene.Membership(), 1);
  EXPECT_FALSE(losses.balance.defined());
  EXPECT_FALSE(losses.z.defined());
}

// Tokens of one sample on several ranks: the parts of the loss add up to the whole, and so do their gradients.
TEST(MoeRouterTest, ASampleMayLieOnSeveralRanks) {
  MoeArch moe = Moe();
  moe.aux_loss_coeff = 0.3;
  moe.z_loss_coeff = 0.2;
  for (const LoadBalancing scope :
       {LoadBalancing::kSequence, LoadBalancing::kMicroBatch, LoadBalancing::kGlobalBatch}) {
    moe.load_balancing = scope;
    const Scene scene = TwoSamples();
    const at::Tensor whole = scene.logits.clone().requires_grad_();
    const RouterLosses expected = LoadBalance(moe, Alone()).Losses(whole, scene.Membership(), 1);
    (expected.balance + expected.z).backward();
    std::vector<double> balance(2), z(2);
    comm::RunRanks(2, [&](int rank, comm::GroupFactory& factory) {
      const comm::CommPtr group = factory.MakeGroup("tp-cp", {0, 1});
      LoadBalance part(moe, {.sample = group, .batch = group});
      const at::Tensor mine = scene.logits.narrow(0, 5 * rank, 5).clone().requires_grad_();
      const at::Tensor membership =
          SampleMembership(scene.layout.row_samples, scene.layout.sample_index.narrow(0, 5 * rank, 5), at::kDouble);
      const RouterLosses losses = part.Losses(mine, membership, 1);
      balance[rank] = losses.balance.item<double>();
      z[rank] = losses.z.item<double>();
      (losses.balance + losses.z).backward();
      EXPECT_THAT(mine.grad(), TensorNear(whole.grad().narrow(0, 5 * rank, 5), 1e-10));
    });
    EXPECT_NEAR(balance[0] + balance[1], expected.balance.item<double>(), 1e-12);
    EXPECT_NEAR(z[0] + z[1], expected.z.item<double>(), 1e-12);
  }
}

// d f / d logits by central differences.
void CheckGradient(const at::Tensor& logits, const std::function<at::Tensor(const at::Tensor&)>& f) {
  const at::Tensor x = logits.clone().requires_grad_();
  f(x).backward();
  const double h = 1e-6;
  at::Tensor numeric = at::zeros_like(logits);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    at::Tensor up = logits.clone(), down = logits.clone();
    up.view(-1)[i] += h;
    down.view(-1)[i] -= h;
    numeric.view(-1)[i] = (f(up) - f(down)) / (2 * h);
  }
  EXPECT_THAT(x.grad(), TensorNear(numeric, 1e-7));
}

TEST(MoeRouterTest, GradientsOfTheGatingEqualDifferences) {
  const Scene scene = TwoSamples();
  const at::Tensor c = Random({kTokens, 2}, 8), real = scene.layout.sample_index != kPaddingSample;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool pre : {false, true}) {
      MoeArch moe = Moe();
      moe.score_function = score;
      moe.pre_softmax = pre && score == RouterScore::kSoftmax;
      moe.topk_scaling_factor = 1.5;
      moe.aux_loss_coeff = 0.3;
      moe.z_loss_coeff = 0.2;
      moe.capacity_factor = 1.0;
      LoadBalance balance(moe, Alone());
      CheckGradient(scene.logits, [&](const at::Tensor& logits) {
        const Routing routing =
            DropOverCapacity(ChooseExperts(logits, {}, real, moe), ExpertCapacity(kTokens, moe), moe);
        const RouterLosses losses = balance.Losses(logits, scene.Membership(), 1);
        return (routing.probs * c).sum() + losses.balance + losses.z;
      });
    }
  }
}

}  // namespace
}  // namespace slipway::engine::nn
