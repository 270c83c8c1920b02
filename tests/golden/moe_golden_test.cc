// The router against megatron-core's on the same logits (data/megatron_moe.json): choices and weights, dropped tokens,
// balancing losses and z-loss with their gradients.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/nn/moe_router.h"
#include "engine/nn/sequence_layout.h"
#include "tests/golden/golden_models.h"
#include "tests/support/source_dir.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using arch::LoadBalancing;
using arch::MoeArch;
using nlohmann::json;
using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;

constexpr double kTolerance = 2e-6;

at::Tensor TensorOf(const json& rows) {
  if (!rows.front().is_array()) return at::tensor(at::ArrayRef<float>(rows.get<std::vector<float>>()), at::kFloat);
  std::vector<at::Tensor> parts;
  for (const json& row : rows) parts.push_back(TensorOf(row));
  return at::stack(parts);
}

class MoeGoldenTest : public ::testing::Test {
 protected:
  const json golden_ = json::parse(
      ::slipway::testing::ReadWholeFile(std::string(SLIPWAY_SOURCE_DIR) + "/tests/golden/data/megatron_moe.json"));
  const int64_t length_ = golden_.at("length"), rows_ = golden_.at("rows"), experts_ = golden_.at("experts");
  const at::Tensor logits_ = TensorOf(golden_.at("logits"));
  const at::Tensor real_ = at::ones({length_ * rows_}, at::kBool);

  MoeArch Moe() const {
    MoeArch moe{.num_experts = experts_, .topk = golden_.at("topk"), .ffn_hidden_size = 1};
    moe.aux_loss_coeff = golden_.at("coeff");
    return moe;
  }
  // [T, E] as Megatron-LM has it.
  at::Tensor Dense(const Routing& routing) const {
    return at::zeros({logits_.size(0), experts_ + 1})
        .scatter_add_(1, routing.experts, routing.probs)
        .narrow(1, 0, experts_);
  }
  at::Tensor Map(const Routing& routing) const {
    return at::zeros({logits_.size(0), experts_ + 1}).scatter_(1, routing.experts, 1.0).narrow(1, 0, experts_);
  }
  // Token-major: token t of sample b is row t · rows + b.
  at::Tensor Membership() const {
    return SampleMembership(at::arange(rows_, at::kLong), at::arange(rows_, at::kLong).repeat({length_}), at::kFloat);
  }
  static LoadBalance Balance(const MoeArch& moe) {
    return LoadBalance(moe, {.sample = comm::MakeSelfCommunicator("a"), .batch = comm::MakeSelfCommunicator("b")});
  }
};

TEST_F(MoeGoldenTest, ChoicesAndWeights) {
  for (const auto& [name, expected] : golden_.at("routing").items()) {
    MoeArch moe = Moe();
    moe.topk = expected.at("topk");
    moe.pre_softmax = name == "pre_softmax" || name == "scaled";
    if (name == "scaled") moe.topk_scaling_factor = 2.5;
    if (name.starts_with("sigmoid") || name == "groups") moe.score_function = arch::RouterScore::kSigmoid;
    if (name == "groups") {
      moe.num_groups = 4;
      moe.group_topk = 2;
    }
    const bool biased = name == "sigmoid_bias" || name == "groups";
    const at::Tensor bias = biased ? TensorOf(golden_.at("bias")) : at::Tensor();
    const Routing routing = ChooseExperts(logits_, bias, real_, moe);
    EXPECT_THAT(Map(routing), TensorEqual(TensorOf(expected.at("map")))) << name;
    EXPECT_THAT(Dense(routing), TensorNear(TensorOf(expected.at("probs")), kTolerance)) << name;
  }
}

TEST_F(MoeGoldenTest, DroppedTokens) {
  for (const json& expected : golden_.at("dropping")) {
    MoeArch moe = Moe();
    moe.capacity_factor = expected.at("factor").get<double>();
    const int64_t capacity = ExpertCapacity(logits_.size(0), moe);
    EXPECT_EQ(capacity, expected.at("capacity").get<int64_t>());
    const Routing routing = DropOverCapacity(ChooseExperts(logits_, {}, real_, moe), capacity, moe);
    EXPECT_THAT(Dense(routing), TensorNear(TensorOf(expected.at("probs")), kTolerance));
    // Padding adds tokens of weight 0 to Megatron-LM's map; ours are rows of nobody.
    if (!expected.at("pad").get<bool>()) {
      EXPECT_THAT(Map(routing), TensorEqual(TensorOf(expected.at("map"))));
    }
  }
}

// Ours are sums over samples; Megatron-LM's are means over those of the micro-batch.
TEST_F(MoeGoldenTest, BalancingLosses) {
  for (const json& expected : golden_.at("balance")) {
    MoeArch moe = Moe();
    moe.load_balancing = *arch::LoadBalancingFromName(expected.at("scope").get<std::string>());
    moe.score_function = *arch::RouterScoreFromName(expected.at("score_function").get<std::string>());
    const at::Tensor logits = logits_.clone().requires_grad_();
    const at::Tensor loss = Balance(moe).Losses(logits, Membership(), 1).balance / static_cast<double>(rows_);
    EXPECT_NEAR(loss.item<double>() / expected.at("loss").get<double>(), 1, kTolerance);
    loss.backward();
    EXPECT_THAT(logits.grad(), TensorNear(TensorOf(expected.at("grad")), 1e-5));
  }
}

TEST_F(MoeGoldenTest, GlobalBalancingLossOfTheSecondMicroBatch) {
  MoeArch moe = Moe();
  moe.load_balancing = LoadBalancing::kGlobalBatch;
  LoadBalance balance = Balance(moe);
  balance.Losses(TensorOf(golden_.at("other_logits")), Membership(), 1);
  const at::Tensor logits = logits_.clone().requires_grad_();
  const at::Tensor loss = balance.Losses(logits, Membership(), 1).balance / static_cast<double>(rows_);
  EXPECT_NEAR(loss.item<double>() / golden_.at("global").at("loss").get<double>(), 1, kTolerance);
  loss.backward();
  EXPECT_THAT(logits.grad(), TensorNear(TensorOf(golden_.at("global").at("grad")), 1e-5));
}

TEST_F(MoeGoldenTest, ZLoss) {
  MoeArch moe = Moe();
  moe.load_balancing = LoadBalancing::kNone;
  moe.z_loss_coeff = golden_.at("coeff");
  const at::Tensor logits = logits_.clone().requires_grad_();
  const at::Tensor loss = Balance(moe).Losses(logits, Membership(), 1).z / static_cast<double>(rows_);
  EXPECT_NEAR(loss.item<double>() / golden_.at("z").at("loss").get<double>(), 1, kTolerance);
  loss.backward();
  EXPECT_THAT(logits.grad(), TensorNear(TensorOf(golden_.at("z").at("grad")), 1e-5));
}

}  // namespace
}  // namespace slipway::engine::nn
