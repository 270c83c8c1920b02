// Models with experts: layouts of expert, data, tensor and pipeline parallelism against one rank, with both dispatchers
// and with the losses of the routers on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/multi/layout_harness.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: as in the harness
using arch::Dispatcher;

const std::vector<Layout>& ExpertLayouts() {
  static const std::vector<Layout> layouts = {
      {.sizes = {.dp = 2}},           // experts on every rank
      {.sizes = {.dp = 2, .ep = 2}},  // edp 1
      {.sizes = {.dp = 4, .ep = 4}},
      {.sizes = {.dp = 4, .ep = 2}},  // edp 2
      {.sizes = {.dp = 4, .ep = 2}, .sharding = arch::Sharding::kNoShard},
      {.sizes = {.dp = 2, .ep = 2}, .rows_per_micro_batch = 2},
      {.sizes = {.dp = 2, .pp = 2, .ep = 2}},
      {.sizes = {.dp = 2, .etp = 2}},  // slices of experts on data-parallel ranks
      {.sizes = {.dp = 4, .ep = 2, .etp = 2}},
      {.sizes = {.tp = 2}, .sequence_parallel = true},
      {.sizes = {.tp = 2, .ep = 2}, .sequence_parallel = true},
      {.sizes = {.tp = 2, .dp = 2, .ep = 2}, .sequence_parallel = true},
      {.sizes = {.tp = 2, .dp = 2, .ep = 2, .etp = 2}, .sequence_parallel = true},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2, .ep = 2, .etp = 2}, .sequence_parallel = true},
      {.sizes = {.cp = 2, .ep = 2}},  // a sample's tokens on two ranks
      {.sizes = {.tp = 2, .cp = 2, .dp = 2, .ep = 4}, .sequence_parallel = true},
  };
  return layouts;
}

class ExpertLayoutTest : public ::testing::TestWithParam<Dispatcher> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, ExpertLayoutTest,
                         ::testing::Values(Dispatcher::kAllToAll, Dispatcher::kAllGather),
                         [](const auto& name) { return std::string(arch::DispatcherName(name.param)); });

TEST_P(ExpertLayoutTest, EqualsOneRank) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  const LayoutResult one = Train(arch, {});
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Layout& layout : ExpertLayouts()) ExpectEqual(one, Train(arch, layout), layout.Text());
}

TEST_P(ExpertLayoutTest, SharedExpertsAndABiasOfTheChoice) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  arch.moe->score_function = arch::RouterScore::kSigmoid;
  arch.moe->expert_bias = true;
  arch.moe->bias_update_rate = 0.05;
  arch.moe->topk_scaling_factor = 1.5;
  arch.moe->num_groups = 4;
  arch.moe->group_topk = 2;
  arch.moe->shared_expert_intermediate_size = 40;
  arch.moe->shared_expert_gate = true;
  const LayoutResult one = Train(arch, {});
  arch::ModelArch still = arch;
  still.moe->bias_update_rate = 1e-12;
  EXPECT_GT(std::abs(Train(still, {}).losses.back() - one.losses.back()), 1e-6);  // the bias does something
  for (const Layout& layout : {Layout{.sizes = {.dp = 4, .ep = 2}}, Layout{.sizes = {.dp = 2, .pp = 2, .ep = 2}},
                               Layout{.sizes = {.dp = 2, .etp = 2}, .sharding = arch::Sharding::kNoShard},
                               Layout{.sizes = {.tp = 2, .dp = 2, .ep = 2}, .sequence_parallel = true}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

// A bias that overrules the router: experts that had more than their share get no token at all in the next step.
TEST_P(ExpertLayoutTest, RanksToWhichNoTokenGoes) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  arch.moe->num_experts = 4;
  arch.moe->topk = 1;
  arch.moe->score_function = arch::RouterScore::kSigmoid;
  arch.moe->expert_bias = true;
  arch.moe->bias_update_rate = 5;  // scores are below 1
  const LayoutResult one = Train(arch, {});
  for (const Layout& layout : {Layout{.sizes = {.dp = 4, .ep = 4}}, Layout{.sizes = {.dp = 4, .ep = 2, .etp = 2}}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

// Experts' slices lie on other ranks than the other parameters' do.
TEST_P(ExpertLayoutTest, ShardedGradientsAndParameters) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  const LayoutResult one = Train(arch, {});
  for (const arch::Sharding sharding : {arch::Sharding::kOptimGrads, arch::Sharding::kOptimGradsParams}) {
    for (const Layout& layout : {Layout{.sizes = {.dp = 4, .ep = 2}, .sharding = sharding},
                                 Layout{.sizes = {.dp = 2, .ep = 2}, .sharding = sharding},
                                 Layout{.sizes = {.dp = 4, .pp = 2, .ep = 2}, .sharding = sharding}}) {
      ExpectEqual(one, Train(arch, layout), layout.Text());
    }
  }
}

// Routing again gives the same choice, and the losses of the routers count once.
TEST_P(ExpertLayoutTest, RecomputedLayers) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  arch.moe->shared_expert_intermediate_size = 40;
  const LayoutResult one = Train(arch, {});
  const nn::RecomputeOptions whole{.layers = nn::RecomputeOptions::Layers::kUniform, .num_layers = 1};
  const nn::RecomputeOptions parts{.attention = true, .norms = true, .activation = true};
  const nn::RecomputeOptions experts{.experts = true};
  for (const nn::RecomputeOptions& recompute : {whole, parts, experts}) {
    for (const Layout& layout :
         {Layout{.recompute = recompute}, Layout{.sizes = {.dp = 2, .ep = 2}, .recompute = recompute}}) {
      ExpectEqual(one, Train(arch, layout), layout.Text());
    }
  }
}

// Micro-batches of different lengths on different ranks.
TEST_P(ExpertLayoutTest, RaggedRows) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->dispatcher = GetParam();
  const LayoutResult one = Train(arch, {.ragged = true});
  for (const Layout& layout : {Layout{.sizes = {.dp = 4, .ep = 2}, .ragged = true},
                               Layout{.sizes = {.cp = 2, .dp = 2, .ep = 2}, .ragged = true}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

// How strong the routers' losses are does not depend on how a batch is cut into micro-batches.
TEST(ExpertLossTest, StrengthDoesNotDependOnMicroBatches) {
  const arch::ModelArch arch = MatrixQwen3Moe();
  const LayoutResult one = Train(arch, {});
  for (const int rows : {2, kMatrixSamples}) {
    ExpectEqual(one, Train(arch, {.rows_per_micro_batch = rows}), std::to_string(rows) + " rows");
  }
  arch::ModelArch without = arch;
  without.moe->aux_loss_coeff = 0;
  without.moe->z_loss_coeff = 0;
  EXPECT_GT(std::abs(Train(without, {}).norms[0] / one.norms[0] - 1), 1e-4);  // they do something
}

// The batch scopes: the same on every layout that has the same micro-batches.
TEST(ExpertLossTest, BatchScopesOnSeveralRanks) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->load_balancing = arch::LoadBalancing::kMicroBatch;
  ExpectEqual(Train(arch, {}), Train(arch, {.sizes = {.dp = 2, .pp = 2, .ep = 2}}), "aux_loss");
  arch.moe->load_balancing = arch::LoadBalancing::kGlobalBatch;
  // One micro-batch of the whole batch, on one rank or on four.
  ExpectEqual(Train(arch, {.rows_per_micro_batch = kMatrixSamples}), Train(arch, {.sizes = {.dp = 4, .ep = 2}}),
              "global_aux_loss");
}

TEST(ExpertCapacityTest, DroppingIsTheSameWithEqualMicroBatches) {
  arch::ModelArch arch = MatrixQwen3Moe();
  arch.moe->capacity_factor = 1.0;
  const LayoutResult one = Train(arch, {});
  for (const bool pad : {false, true}) {
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
      arch.moe->pad_to_capacity = pad;
      arch.moe->dispatcher = dispatcher;
      ExpectEqual(one, Train(arch, {}), "one rank");
      ExpectEqual(one, Train(arch, {.sizes = {.dp = 4, .ep = 2}}), "ep 2");
    }
  }
}

}  // namespace
}  // namespace slipway::testing
