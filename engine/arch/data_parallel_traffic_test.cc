// What a step must cost, by hand. That a running store costs just this is a test of tests/multi.
#include "engine/arch/data_parallel_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kRanks = 4;

class DataParallelTrafficTest : public ::testing::Test {
 protected:
  DataParallelTrafficTest() {
    table_ = BuildParamTable(*FindPreset("tiny_llama"));  // two layers
    pieces_ = {{Piece::Kind::kEmbedding}, {Piece::Kind::kLayer, 0}, {Piece::Kind::kLayer, 1}, {Piece::Kind::kHead}};
    plan_ = *PlanBuckets(table_, pieces_, {.shards = kRanks, .bucket_elements = 1});
    for (const PlannedBucket& bucket : plan_.buckets) {
      all_ += bucket.elements;
      largest_ = std::max(largest_, bucket.elements);
    }
  }

  // A step of two micro-batches, after another one.
  Volumes Step(DataParallelTraffic& traffic) const {
    for (int step = 0; step < 2; ++step) {
      traffic.TakeVolumes();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        traffic.Forward(pieces_);
        traffic.Backward(pieces_);
      }
      traffic.EndStep();
    }
    return traffic.TakeVolumes();
  }

  std::vector<ParamSpec> table_;
  std::vector<Piece> pieces_;
  BucketPlan plan_;
  int64_t all_ = 0;
  int64_t largest_ = 0;
};

using Key = std::pair<std::string, std::string>;

TEST_F(DataParallelTrafficTest, ReplicasReduceEachBucketOnce) {
  ASSERT_EQ(plan_.buckets.size(), 4u);
  DataParallelTraffic traffic(table_, plan_, {.sharding = Sharding::kNoShard, .world = kRanks});
  EXPECT_THAT(Step(traffic), ElementsAre(Pair(Key{"dp-cp", "all_reduce"}, Volume{4, all_ * 4}),
                                         Pair(Key{"world", "all_reduce"}, Volume{1, 16})));
  EXPECT_EQ(traffic.resident(), (ResidentBytes{all_ * 4, all_ * 4, all_ * 8, 0, 0}));
}

TEST_F(DataParallelTrafficTest, AShardedOptimizerScattersAndGathers) {
  DataParallelTraffic traffic(table_, plan_,
                              {.sharding = Sharding::kOptim, .compute_bytes = 2, .grad_reduce_in_fp32 = false});
  EXPECT_THAT(Step(traffic), ElementsAre(Pair(Key{"dp-cp", "all_gather"}, Volume{4, all_ / kRanks * 2}),
                                         Pair(Key{"dp-cp", "reduce_scatter"}, Volume{4, all_ * 2})));
  EXPECT_EQ(traffic.resident().weights, all_ * 2);
  EXPECT_EQ(traffic.resident().gradients, all_ * 4);
  EXPECT_EQ(traffic.resident().optimizer, all_ / kRanks * 12);
  EXPECT_LE(traffic.resident().peak_staging, 2 * largest_ * 2);
}

TEST_F(DataParallelTrafficTest, ShardedGradientsScatterInEachMicroBatch) {
  DataParallelTraffic traffic(table_, plan_, {.sharding = Sharding::kOptimGrads});
  // 0 1 2 3 in both micro-batches.
  EXPECT_THAT(Step(traffic), ElementsAre(Pair(Key{"dp-cp", "all_gather"}, Volume{4, all_ / kRanks * 4}),
                                         Pair(Key{"dp-cp", "reduce_scatter"}, Volume{8, 2 * all_ * 4})));
  EXPECT_EQ(traffic.resident().gradients, all_ / kRanks * 4);
  EXPECT_LE(traffic.resident().peak_staging, 2 * largest_ * 4);
}

TEST_F(DataParallelTrafficTest, ShardedParametersAreGatheredForwardAndBackward) {
  DataParallelTraffic traffic(table_, plan_, {.sharding = Sharding::kOptimGradsParams});
  const Volumes step = Step(traffic);
  // Each micro-batch: embedding, both layers and the head forward; the lower layer backward (the head and the upper
  // layer are still there); the embedding's gradient needs no weight. What the last guess fetched is one more at most.
  EXPECT_GE(step.at({"dp-cp", "all_gather"}).operations, 9);
  EXPECT_LE(step.at({"dp-cp", "all_gather"}).operations, 11);
  EXPECT_EQ(step.at({"dp-cp", "reduce_scatter"}), (Volume{8, 2 * all_ * 4}));
  EXPECT_EQ(traffic.resident().weights, all_ / kRanks * 4);
  EXPECT_LE(traffic.resident().peak_gathered, 2 * largest_ * 4);
}

TEST_F(DataParallelTrafficTest, OneRankSendsNothing) {
  const BucketPlan alone = *PlanBuckets(table_, pieces_, {});
  DataParallelTraffic traffic(table_, alone, {.sharding = Sharding::kOptimGradsParams});
  EXPECT_THAT(Step(traffic), IsEmpty());
  EXPECT_EQ(traffic.resident().peak_gathered + traffic.resident().peak_staging, 0);
}

}  // namespace
}  // namespace slipway::engine::arch
