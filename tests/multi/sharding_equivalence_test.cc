// What data-parallel ranks share out, what overlaps and what is computed again changes no result: against one rank.
// Each run also compares what every rank holds and sends with its plan (layout_costs.h).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/multi/layout_harness.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: as in the harness
using arch::Sharding;
using topology::MeshSizes;
using RecomputedLayers = nn::RecomputeOptions::Layers;

const std::vector<MeshSizes>& Meshes() {
  static const std::vector<MeshSizes> meshes = {
      {.dp = 2}, {.dp = 4}, {.tp = 2, .dp = 2}, {.dp = 2, .pp = 2}, {.tp = 2, .dp = 2, .pp = 2}};
  return meshes;
}

class ShardingEquivalence : public ::testing::TestWithParam<Sharding> {};
INSTANTIATE_TEST_SUITE_P(Strategies, ShardingEquivalence,
                         ::testing::Values(Sharding::kNoShard, Sharding::kOptim, Sharding::kOptimGrads,
                                           Sharding::kOptimGradsParams),
                         [](const auto& sharding) { return std::string(ShardingName(sharding.param)); });

TEST_P(ShardingEquivalence, EqualsOneRank) {
  for (const arch::ModelArch& arch : {MatrixLlama(), MatrixTiedQwen3()}) {
    const LayoutResult one = Train(arch, {});
    for (const MeshSizes& sizes : Meshes()) {
      const Layout layout{.sizes = sizes, .sharding = GetParam()};
      ExpectEqual(one, Train(arch, layout), layout.Text());
    }
  }
}

// The same operations in the same order, only waited for at another time.
TEST_P(ShardingEquivalence, OverlapChangesNoBit) {
  for (const MeshSizes& sizes : {MeshSizes{.dp = 2}, MeshSizes{.tp = 2, .dp = 2, .pp = 2}}) {
    const LayoutResult with = Train(MatrixTiedQwen3(), {.sizes = sizes, .sharding = GetParam()});
    const LayoutResult without = Train(MatrixTiedQwen3(), {.sizes = sizes, .sharding = GetParam(), .overlap = false});
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_EQ(with.evaluation, without.evaluation);
  }
}

TEST_P(ShardingEquivalence, HoldsWithVirtualStages) {
  arch::ModelArch arch = MatrixTiedQwen3();
  arch.num_layers = 4;
  const Layout layout{.sizes = {.dp = 2, .pp = 2}, .vpp = 2, .sharding = GetParam()};
  ExpectEqual(Train(arch, {}), Train(arch, layout), layout.Text());
}

TEST_P(ShardingEquivalence, HoldsWithRecomputation) {
  arch::ModelArch arch = MatrixTiedQwen3();
  arch.num_layers = 4;
  arch.hidden_dropout = 0.1;
  const LayoutResult one = Train(arch, {});
  for (const nn::RecomputeOptions& recompute :
       {nn::RecomputeOptions{.layers = RecomputedLayers::kUniform, .num_layers = 2},
        nn::RecomputeOptions{.layers = RecomputedLayers::kBlock, .num_layers = 1},
        nn::RecomputeOptions{.attention = true, .norms = true, .activation = true}}) {
    Layout layout{.sizes = {.tp = 2, .dp = 2, .pp = 2}, .sharding = GetParam()};
    const LayoutResult plain = Train(arch, layout);
    layout.recompute = recompute;
    const LayoutResult recomputed = Train(arch, layout);
    ExpectEqual(one, recomputed, layout.Text());
    EXPECT_EQ(recomputed.losses, plain.losses);
    EXPECT_EQ(recomputed.norms, plain.norms);
  }
}

// Rounding each rank's sum to bf16 moves a gradient by at most 2^-8 of its parts.
TEST_P(ShardingEquivalence, ReductionInBfloat16StaysClose) {
  const LayoutResult one = Train(MatrixLlama(), {});
  const LayoutResult narrow =
      Train(MatrixLlama(), {.sizes = {.dp = 2}, .sharding = GetParam(), .grad_reduce_in_fp32 = false});
  EXPECT_NE(narrow.norms, one.norms);
  for (int step = 0; step < kMatrixSteps; ++step) EXPECT_NEAR(narrow.losses[step] / one.losses[step], 1, 2e-3) << step;
  EXPECT_NEAR(narrow.norms[0] / one.norms[0], 1, 4e-3);
}

// With whole gradients each bucket is summed once, in rank order, whoever keeps the sum.
TEST(ShardingEquivalenceMore, ShardingTheOptimizerChangesNoBit) {
  for (const MeshSizes& sizes : {MeshSizes{.dp = 4}, MeshSizes{.tp = 2, .dp = 2, .pp = 2}}) {
    const LayoutResult replicated = Train(MatrixTiedQwen3(), {.sizes = sizes, .sharding = Sharding::kNoShard});
    const LayoutResult sharded = Train(MatrixTiedQwen3(), {.sizes = sizes});
    EXPECT_EQ(sharded.losses, replicated.losses);
    EXPECT_EQ(sharded.norms, replicated.norms);
    EXPECT_EQ(sharded.evaluation, replicated.evaluation);
  }
}

// Where the parameters are makes no difference to what is computed.
TEST(ShardingEquivalenceMore, ShardingTheParametersChangesNoBit) {
  for (const MeshSizes& sizes : {MeshSizes{.dp = 4}, MeshSizes{.tp = 2, .dp = 2, .pp = 2}}) {
    const LayoutResult grads = Train(MatrixTiedQwen3(), {.sizes = sizes, .sharding = Sharding::kOptimGrads});
    const LayoutResult params = Train(MatrixTiedQwen3(), {.sizes = sizes, .sharding = Sharding::kOptimGradsParams});
    EXPECT_EQ(grads.losses, params.losses);
    EXPECT_EQ(grads.norms, params.norms);
    EXPECT_EQ(grads.evaluation, params.evaluation);
  }
}

}  // namespace
}  // namespace slipway::testing
