// Whole runs of models with experts on threads as ranks: the same run with experts spread over ranks, resumed on
// another layout, with the bias of experts in its checkpoints and the load in its metrics.
#include <gtest/gtest.h>

#include "engine/arch/hf_config.h"
#include "engine/format/hf_model_check.h"
#include "engine/format/hf_weights.h"
#include "tests/support/training_runs.h"

namespace slipway::engine::train {
namespace {

class MoeRunTest : public TrainingRunTest {
 protected:
  // Experts over `ep` of the data-parallel ranks, with a balancing loss.
  v1::TrainingSpec MoeSpec(int dp, int ep, const std::string& sharding = "optim") {
    v1::TrainingSpec spec = Spec(dp, sharding);
    spec.mutable_model()->set_hf_path(SLIPWAY_SOURCE_DIR "/tests/golden/data/qwen3_moe");
    spec.mutable_model()->set_moe_aux_loss_coeff(0.01);
    spec.mutable_parallelism()->set_expert_model_parallel_size(ep);
    return spec;
  }
};

TEST_F(MoeRunTest, ExpertsOverRanksAreTheSameRunAndResumeOnAnotherLayout) {
  const RunResult one = Run(MoeSpec(1, 1));
  ASSERT_OK(one.outcome);
  for (const std::string sharding : {"optim", "no_shard", "optim_grads_params"}) {
    const RunResult before = Run(MoeSpec(4, 2, sharding), {.stop_after = 4});
    ASSERT_OK(before.outcome);
    const int64_t stopped = before.recorder.checkpoints[0].step();
    ExpectSameLosses(before, one, 1, stopped, 1e-5);
    v1::TrainingSpec last = MoeSpec(1, 1);
    last.mutable_checkpoint()->set_export_hf(true);
    const RunResult after = Run(last, {.epoch = 2, .lineage = {Entry(1)}});
    ASSERT_OK(after.outcome);
    EXPECT_EQ(after.recorder.start.step, stopped);
    ExpectSameLosses(after, one, stopped + 1, 10, 1e-5);
    const std::string exported = JoinPath(temp_.path(), "hf");
    ASSERT_OK_AND_ASSIGN(const arch::ModelArch arch, arch::ReadHfConfig(JoinPath(exported, "config.json")));
    ASSERT_OK_AND_ASSIGN(const format::HfWeights weights, format::HfWeights::Open(posix_, exported));
    ASSERT_OK_AND_ASSIGN(const format::HfModelFindings findings, format::CheckHfModel(weights, arch));
    EXPECT_TRUE(findings.faults.empty() && findings.notes.empty());
  }
}

TEST_F(MoeRunTest, TheBiasOfExpertsIsPartOfACheckpoint) {
  v1::TrainingSpec spec = Spec(2);
  spec.mutable_model()->clear_hf_path();
  spec.mutable_model()->set_preset("tiny_qwen3_moe");
  spec.mutable_model()->set_moe_router_score_function("sigmoid");
  spec.mutable_model()->set_moe_router_enable_expert_bias(true);
  spec.mutable_model()->set_moe_router_bias_update_rate(0.1);
  spec.mutable_parallelism()->set_expert_model_parallel_size(2);
  const RunResult straight = Run(spec);
  ASSERT_OK(Run(spec, {.stop_after = 4}).outcome);
  const RunResult after = Run(spec, {.epoch = 2, .lineage = {Entry(1)}});
  ASSERT_OK(after.outcome);
  ExpectSameLosses(after, straight, after.recorder.start.step + 1, 10, 0);
}

TEST_F(MoeRunTest, StepsTellHowTokensWereSpreadOverExperts) {
  for (const int ep : {1, 2}) {
    const RunResult run = Run(MoeSpec(2, ep));
    ASSERT_OK(run.outcome);
    const v1::RoutingMetrics& routing = run.recorder.steps.at(1).routing();
    // 4 samples of 24 tokens, 2 of 8 experts each: 24 is the even share.
    EXPECT_GE(routing.max_tokens_per_expert(), 24);
    EXPECT_LE(routing.min_tokens_per_expert(), 24);
    EXPECT_DOUBLE_EQ(routing.max_load(), static_cast<double>(routing.max_tokens_per_expert()) / 24);
    EXPECT_GT(routing.load_balancing_loss(), 0.01 * 2);  // two layers, each at least 1 when even
    EXPECT_EQ(routing.z_loss(), 0);
    EXPECT_EQ(routing.dropped_tokens(), 0);
  }
  EXPECT_FALSE(Run(Spec(1)).recorder.steps.at(1).has_routing());
}

}  // namespace
}  // namespace slipway::engine::train
