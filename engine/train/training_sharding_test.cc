// Whole runs with what data-parallel ranks share out, and ranks that do not belong together. Ranks are threads.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/checkpoint/checkpoint_io.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/train/model_instance.h"
#include "engine/train/run_options.h"
#include "tests/support/training_runs.h"

namespace slipway::engine::train {
namespace {

using ::testing::HasSubstr;

constexpr std::array<const char*, 4> kStrategies = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

class TrainingShardingTest : public TrainingRunTest {
 protected:
  using States = std::map<std::string, at::Tensor>;  // master weights and moments, whole
  // A checkpoint as `dp` ranks of this strategy load it.
  States Load(const std::string& path, int dp, const std::string& sharding) {
    const v1::TrainingSpec spec = spec::Resolve(Spec(dp, sharding));
    const arch::ModelArch arch = *spec::ArchFromSpec(spec);
    const topology::Mesh mesh = *topology::Mesh::Create({.dp = dp});
    const topology::PipelinePartition partition = *spec::PartitionOf(spec.parallelism(), arch.num_layers);
    States states;
    std::mutex mutex;
    comm::RunRanks(dp, [&](int rank, comm::GroupFactory& factory) {
      const comm::ParallelGroups groups = comm::MakeParallelGroups(mesh, rank, factory);
      ASSERT_OK_AND_ASSIGN(ModelInstance model,
                           ModelInstance::Create(arch, mesh, partition, rank, groups, StoreOptions(spec, at::kCPU),
                                                 LayerOptions(spec, arch)));
      ASSERT_OK(checkpoint::LoadCheckpoint(posix_, path, model.store()));
      std::lock_guard lock(mutex);
      for (const parallel::OwnedRange& range : model.store().owned_ranges()) {
        const parallel::Bucket& bucket = model.store().buckets()[range.share->bucket];
        for (const auto& [kind, slice] : {std::pair{"master", bucket.master}, std::pair{"exp_avg", bucket.exp_avg},
                                          std::pair{"exp_avg_sq", bucket.exp_avg_sq}}) {
          at::Tensor& whole = states[StrCat(range.share->spec->name, " ", kind)];
          if (!whole.defined()) whole = at::zeros({range.share->elements});
          const int64_t count = range.end - range.begin;
          whole.narrow(0, range.begin, count).copy_(slice.narrow(0, range.offset, count));
        }
      }
    });
    return states;
  }
};

TEST_F(TrainingShardingTest, EachStrategyTrainsTheSameRun) {
  const RunResult one = Run(ChatSpec(1));
  for (const char* strategy : kStrategies) {
    v1::TrainingSpec spec = ChatSpec(2);
    spec.mutable_parallelism()->set_data_parallel_sharding_strategy(strategy);
    spec.mutable_parallelism()->set_pipeline_model_parallel_size(2);
    spec.mutable_training()->set_recompute_granularity("full");
    spec.mutable_training()->set_recompute_method("uniform");
    spec.mutable_logger()->set_log_num_zeros_in_grad(true);
    spec.mutable_logger()->set_log_params_norm(true);
    spec.mutable_training()->set_check_weight_hash_across_dp_replicas_interval(3);
    const RunResult run = Run(spec);
    ASSERT_OK(run.outcome) << strategy;
    ExpectSameLosses(run, one, 1, 10, 1e-5);
    for (const int64_t step : {0, 5, 10}) {
      EXPECT_NEAR(run.recorder.evals.at(step).loss(), one.recorder.evals.at(step).loss(), 1e-5);
    }
    EXPECT_GT(run.recorder.steps.at(1).num_zeros(), 0);
    EXPECT_GT(run.recorder.steps.at(1).params_norm(), 0);
    EXPECT_FALSE(one.recorder.steps.at(1).has_num_zeros());
    EXPECT_FALSE(one.recorder.steps.at(1).has_params_norm());
  }
}

TEST_F(TrainingShardingTest, ACheckpointOfOneStrategyIsThatOfAnyOther) {
  for (const char* saved : kStrategies) {
    const RunResult before = Run(Spec(2, saved), {.stop_after = 4});
    ASSERT_EQ(before.recorder.checkpoints.size(), 1u);
    const std::string path = before.recorder.checkpoints[0].path();
    const States whole = Load(path, 1, "no_shard");
    for (const char* loaded : kStrategies) {
      for (const auto& [name, state] : Load(path, 2, loaded)) {
        EXPECT_TRUE(at::equal(state, whole.at(name))) << name << ", " << saved << " as " << loaded;
      }
    }
  }
}

TEST_F(TrainingShardingTest, AResumeWithAnotherStrategyGoesOnWithinFloatNoise) {
  const RunResult straight = Run(Spec(2));
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    ASSERT_OK(Run(Spec(2, kStrategies[i]), {.stop_after = 4}).outcome);
    const char* other = kStrategies[(i + 1) % kStrategies.size()];
    const RunResult resumed = Run(Spec(4, other), {.epoch = 2, .lineage = {Entry(1)}});
    ASSERT_OK(resumed.outcome);
    EXPECT_TRUE(resumed.recorder.start.resumed);
    ExpectSameLosses(resumed, straight, resumed.recorder.start.step + 1, 10, 1e-5);
  }
}

TEST_F(TrainingShardingTest, ARankWithAnotherSpecificationIsFoundBeforeItTrains) {
  RunOptions options;
  options.spec_of_rank_1 = Spec(2, "no_shard");  // loading alone would make them wait for each other
  const RunResult run = Run(Spec(2), options);
  const auto found = testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0 has specification"));
  EXPECT_THAT(run.outcome, found);
  EXPECT_THAT(run.outcome_of_rank_1, found);
  EXPECT_THAT(std::string(run.outcome.status().message()), HasSubstr("rank 1 has"));
  EXPECT_EQ(run.recorder.last_step, 0);
}

TEST_F(TrainingShardingTest, ARankAtAnotherStepIsFoundBeforeItTrains) {
  ASSERT_OK(Run(Spec(2, "no_shard"), {.stop_after = 4}).outcome);
  RunOptions options{.epoch = 2, .lineage = {Entry(1)}};
  options.checkpoints_of_rank_1 = JoinPath(temp_.path(), "none");
  const RunResult run = Run(Spec(2, "no_shard"), options);
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("rank 0 is at step 6, rank 1 at step 1")));
  EXPECT_EQ(run.recorder.last_step, 0);
}

TEST_F(TrainingShardingTest, ARankWithOtherWeightsIsFoundBeforeItTrains) {
  const std::string root = JoinPath(temp_.path(), "checkpoints"), other = JoinPath(temp_.path(), "other");
  v1::TrainingSpec spec = Spec(2, "no_shard");
  spec.mutable_optimizer()->set_lr(2e-3);
  ASSERT_OK(Run(spec, {.stop_after = 4}).outcome);
  ASSERT_OK(posix_.Rename(root, other));
  ASSERT_OK(Run(Spec(2, "no_shard"), {.stop_after = 4}).outcome);
  RunOptions options{.epoch = 2, .lineage = {Entry(1)}};
  options.checkpoints_of_rank_1 = other;
  const RunResult run = Run(Spec(2, "no_shard"), options);
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("replicas of parameters 0 differ: rank 0 has checksum")));
  EXPECT_THAT(std::string(run.outcome.status().message()), HasSubstr("rank 1 has"));
  EXPECT_EQ(run.recorder.last_step, 0);
}

}  // namespace
}  // namespace slipway::engine::train
