#include "engine/topology/pipeline_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/status_matchers.h"

namespace slipway::engine::topology {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PipelinePartition, AsEvenlyAsPossible) {
  ASSERT_OK_AND_ASSIGN(const PipelinePartition two, PartitionLayers(7, 2));
  EXPECT_EQ(two.Text(), "[4, 3]");
  ASSERT_OK_AND_ASSIGN(const PipelinePartition four, PartitionLayers(30, 4));
  EXPECT_EQ(four.Text(), "[8, 8, 7, 7]");
  EXPECT_EQ(four.MaxLayersOfRank(), 8);
  ASSERT_OK_AND_ASSIGN(const PipelinePartition interleaved, PartitionLayers(7, 2, 2));
  EXPECT_EQ(interleaved.Text(), "[2+2, 2+1]");
}

TEST(PipelinePartition, EveryLayerOnceInOrder) {
  for (int layers = 1; layers <= 40; ++layers) {
    for (int pp = 1; pp <= 6; ++pp) {
      for (int vpp = 1; vpp <= 3; ++vpp) {
        if (layers < pp * vpp) continue;
        ASSERT_OK_AND_ASSIGN(const PipelinePartition partition, PartitionLayers(layers, pp, vpp));
        ASSERT_EQ(static_cast<int>(partition.stages.size()), pp * vpp);
        int next = 0;
        for (const PipelineStage& stage : partition.stages) {
          ASSERT_EQ(stage.first_layer, next);
          ASSERT_TRUE(stage.num_layers == layers / (pp * vpp) || stage.num_layers == layers / (pp * vpp) + 1);
          for (int i = 0; i < stage.num_layers; ++i) ASSERT_EQ(partition.OfLayer(next++), stage);
        }
        ASSERT_EQ(next, layers);
      }
    }
  }
}

TEST(PipelinePartition, EmbeddingFirstAndHeadLast) {
  ASSERT_OK_AND_ASSIGN(const PipelinePartition partition, PartitionLayers(8, 2, 2));
  const std::vector<PipelineStage> first = partition.OfRank(0);
  const std::vector<PipelineStage> last = partition.OfRank(1);
  EXPECT_EQ(first[0], (PipelineStage{0, 0, 0, 2, true, false}));
  EXPECT_EQ(first[1], (PipelineStage{0, 1, 4, 2, false, false}));
  EXPECT_EQ(last[1], (PipelineStage{1, 1, 6, 2, false, true}));
  ASSERT_OK_AND_ASSIGN(const PipelinePartition whole, PartitionLayers(1, 1));
  EXPECT_EQ(whole.stages[0], (PipelineStage{0, 0, 0, 1, true, true}));
}

TEST(PipelinePartition, AsALayoutStringSays) {
  ASSERT_OK_AND_ASSIGN(const PipelinePartition partition, PartitionByLayout(7, 2, "Et*3||t*4|L"));
  EXPECT_EQ(partition.vpp, 2);
  EXPECT_EQ(partition.Text(), "[3+4, 0+0]");
  EXPECT_EQ(partition.stages[0], (PipelineStage{0, 0, 0, 3, true, false}));
  EXPECT_EQ(partition.stages[2], (PipelineStage{0, 1, 3, 4, false, false}));
  EXPECT_EQ(partition.stages[3], (PipelineStage{1, 1, 7, 0, false, true}));
  for (int layer = 0; layer < 7; ++layer) EXPECT_EQ(partition.OfLayer(layer), partition.stages[layer < 3 ? 0 : 2]);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PartitionByLayout(8, 2, "Et*3||t*4|L"), StatusIs(kInvalid, HasSubstr("7 layers (t), and the model has 8")));
  EXPECT_THAT(PartitionByLayout(7, 3, "Et*3||t*4|L"), StatusIs(kInvalid, HasSubstr("4 stages")));
  EXPECT_THAT(PartitionByLayout(7, 2, "Et*3||x*4|L"), StatusIs(kInvalid, HasSubstr("position 7: 'x'")));
  EXPECT_THAT(PartitionByLayout(7, 0, "Et*7L"), StatusIs(kInvalid, HasSubstr("0 ranks")));
}

TEST(PipelinePartition, RefusesFewerLayersThanStages) {
  EXPECT_THAT(PartitionLayers(2, 4), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("2 layers"), HasSubstr("4 pipeline stages"))));
  EXPECT_THAT(PartitionLayers(5, 3, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6 pipeline stages")));
  EXPECT_THAT(PartitionLayers(5, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 1")));
}

}  // namespace
}  // namespace slipway::engine::topology
