// Whole runs on threads as ranks: the loss does not depend on the layout, a resumed run is the run that was not
// stopped, and a save that fails costs nothing but itself.
#include "engine/train/training_run.h"

#include "common/fault_file_system.h"
#include "engine/format/checkpoint_directory.h"
#include "tests/support/training_runs.h"

namespace slipway::engine::train {
namespace {

using ::testing::HasSubstr;

TEST_F(TrainingRunTest, TenLossesAreEqualOnOneTwoAndFourRanksWithUnevenMasks) {
  const RunResult one = Run(ChatSpec(1)), two = Run(ChatSpec(2)), four = Run(ChatSpec(4));
  ASSERT_OK(one.outcome);
  ASSERT_OK(two.outcome);
  ASSERT_OK(four.outcome);
  ExpectSameLosses(two, one, 1, 10, 1e-5);
  ExpectSameLosses(four, one, 1, 10, 1e-5);
  for (const int64_t step : {0, 5, 10}) {
    EXPECT_NEAR(two.recorder.evals.at(step).loss(), one.recorder.evals.at(step).loss(), 1e-5);
    EXPECT_NEAR(four.recorder.evals.at(step).loss(), one.recorder.evals.at(step).loss(), 1e-5);
    EXPECT_EQ(four.recorder.evals.at(step).loss_tokens(), one.recorder.evals.at(step).loss_tokens());
  }
  EXPECT_LT(one.recorder.steps.at(10).loss(), one.recorder.steps.at(1).loss());
}

TEST_F(TrainingRunTest, TensorAndPipelineParallelRunsAreTheSameRun) {
  const RunResult one = Run(Spec(1));
  v1::TrainingSpec spec = Spec(2);
  spec.mutable_parallelism()->set_tensor_model_parallel_size(2);
  spec.mutable_parallelism()->set_pipeline_model_parallel_size(2);
  const RunResult eight = Run(spec);
  ASSERT_OK(eight.outcome);
  ExpectSameLosses(eight, one, 1, 10, 1e-5);
}

// The golden model has as many layers as two ranks with two chunks each need.
TEST_F(TrainingRunTest, AResumeOnVirtualStagesAndALayoutStringIsTheSameRun) {
  const auto on_pipeline = [&](int chunks, const std::string& layout) {
    v1::TrainingSpec spec = ChatSpec(1);
    spec.mutable_model()->clear_hf_path();
    spec.mutable_model()->set_preset("tiny_qwen3");
    spec.mutable_model()->set_num_layers(5);
    spec.mutable_model()->set_untie_embeddings_and_output_weights(false);
    spec.mutable_checkpoint()->set_export_hf(true);
    v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
    parallelism->set_pipeline_model_parallel_size(chunks == 0 ? 1 : 2);
    if (chunks > 0) parallelism->set_virtual_pipeline_model_parallel_size(chunks);
    if (!layout.empty()) parallelism->set_pipeline_model_parallel_layout(layout);
    return spec;
  };
  const RunResult straight = Run(on_pipeline(0, ""));
  ASSERT_OK(straight.outcome);
  ASSERT_OK_AND_ASSIGN(const std::string exported, posix_.ReadFile(JoinPath(temp_.path(), "hf/model.safetensors")));
  ASSERT_OK(posix_.RemoveTree(JoinPath(temp_.path(), "hf")));
  ASSERT_OK(Run(on_pipeline(1, ""), {.stop_after = 3}).outcome);
  const RunResult virtual_stages = Run(on_pipeline(2, ""), {.epoch = 2, .lineage = {Entry(1)}, .stop_after = 6});
  ASSERT_OK(virtual_stages.outcome);
  const int64_t first = virtual_stages.recorder.start.step, second = virtual_stages.recorder.checkpoints.back().step();
  const RunResult by_layout =
      Run(on_pipeline(2, "Et|t*3||tL"), {.epoch = 3, .lineage = {Entry(1), Entry(2, 1, first)}});
  ASSERT_OK(by_layout.outcome);
  EXPECT_EQ(by_layout.recorder.start.step, second);
  ExpectSameLosses(virtual_stages, straight, first + 1, second, 1e-5);
  ExpectSameLosses(by_layout, straight, second + 1, 10, 1e-5);
  for (const int64_t step : {5, 10}) {
    const auto& evals = step <= second ? virtual_stages.recorder.evals : by_layout.recorder.evals;
    ASSERT_TRUE(evals.contains(step)) << step;
    EXPECT_NEAR(evals.at(step).loss(), straight.recorder.evals.at(step).loss(), 1e-5);
  }
  ASSERT_OK_AND_ASSIGN(const std::string again, posix_.ReadFile(JoinPath(temp_.path(), "hf/model.safetensors")));
  EXPECT_EQ(again.size(), exported.size());
}

// Chats of different lengths: what a rank's tokens are padded to divides over the tensor-parallel ranks.
TEST_F(TrainingRunTest, SequenceParallelRunsAreTheSameRun) {
  const RunResult one = Run(ChatSpec(1));
  v1::TrainingSpec spec = ChatSpec(1);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_parallelism()->set_tensor_model_parallel_size(2);
  spec.mutable_parallelism()->set_pipeline_model_parallel_size(2);
  spec.mutable_parallelism()->set_sequence_parallel(true);
  spec.mutable_parallelism()->set_tp_comm_overlap(true);
  const RunResult four = Run(spec);
  ASSERT_OK(four.outcome);
  ExpectSameLosses(four, one, 1, 10, 1e-5);
  for (const int64_t step : {0, 10}) {
    EXPECT_NEAR(four.recorder.evals.at(step).loss(), one.recorder.evals.at(step).loss(), 1e-5);
  }
}

// Chats of different lengths, several to a micro-batch: rows are padded one by one, tokens and weights count once.
TEST_F(TrainingRunTest, ContextParallelRunsAreTheSameRun) {
  const RunResult one = Run(ChatSpec(1));
  for (const char* comm : {"p2p", "all_gather", "a2a"}) {
    v1::TrainingSpec spec = ChatSpec(1);
    spec.mutable_training()->set_micro_batch_size(2);
    spec.mutable_parallelism()->set_context_parallel_size(2);
    spec.mutable_parallelism()->set_tensor_model_parallel_size(2);
    spec.mutable_parallelism()->set_sequence_parallel(true);
    spec.mutable_parallelism()->set_cp_comm_type(comm);
    const RunResult four = Run(spec);
    ASSERT_OK(four.outcome);
    ExpectSameLosses(four, one, 1, 10, 1e-5);
    EXPECT_EQ(four.recorder.steps.at(10).consumed_tokens(), one.recorder.steps.at(10).consumed_tokens());
    for (const int64_t step : {0, 10}) {
      EXPECT_NEAR(four.recorder.evals.at(step).loss(), one.recorder.evals.at(step).loss(), 1e-5);
      EXPECT_EQ(four.recorder.evals.at(step).loss_tokens(), one.recorder.evals.at(step).loss_tokens());
    }
  }
}

TEST_F(TrainingRunTest, ARunPausedOnContextParallelRanksResumesOnDataParallelOnes) {
  const RunResult straight = Run(Spec(1));
  v1::TrainingSpec context = Spec(1);
  context.mutable_parallelism()->set_context_parallel_size(2);
  ASSERT_OK(Run(context, {.stop_after = 4}).outcome);
  const RunResult on_data = Run(Spec(2), {.epoch = 2, .lineage = {Entry(1)}, .stop_after = 7});
  ASSERT_OK(on_data.outcome);
  const int64_t first = on_data.recorder.start.step, second = on_data.recorder.checkpoints.back().step();
  context.mutable_parallelism()->set_tensor_model_parallel_size(2);
  const RunResult on_both = Run(context, {.epoch = 3, .lineage = {Entry(1), Entry(2, 1, first)}});
  ASSERT_OK(on_both.outcome);
  EXPECT_EQ(on_both.recorder.start.step, second);
  ExpectSameLosses(on_data, straight, first + 1, second, 1e-5);
  ExpectSameLosses(on_both, straight, second + 1, 10, 1e-5);
}

TEST_F(TrainingRunTest, AStoppedAndResumedRunIsBitForBitTheRunThatWasNot) {
  for (const char* sharding : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    v1::TrainingSpec spec = Spec(2, sharding);
    spec.mutable_model()->set_hidden_dropout(0.1);  // R7: random numbers go on as well
    const RunResult straight = Run(spec);
    const RunResult before = Run(spec, {.stop_after = 4});
    ASSERT_OK(before.outcome);
    EXPECT_EQ(*before.outcome, TrainOutcome::kStopped);
    ASSERT_EQ(before.recorder.checkpoints.size(), 1u);
    const int64_t stopped = before.recorder.checkpoints[0].step();
    EXPECT_LT(stopped, 10);
    const std::string crashed = JoinPath(temp_.path(), "checkpoints/.saving-step-00000099-e1");
    ASSERT_OK(posix_.MakeDirectories(crashed));
    const RunResult after = Run(spec, {.epoch = 2, .lineage = {Entry(1)}});
    ASSERT_OK(after.outcome);
    ASSERT_OK_AND_ASSIGN(const bool left, posix_.Exists(crashed));
    EXPECT_FALSE(left);
    EXPECT_TRUE(after.recorder.start.resumed);
    EXPECT_EQ(after.recorder.start.step, stopped);
    // Said again, in case its news was lost.
    EXPECT_EQ(after.recorder.checkpoints[0].step(), stopped);
    EXPECT_EQ(after.recorder.checkpoints[0].size_bytes(), before.recorder.checkpoints[0].size_bytes());
    ExpectSameLosses(after, straight, stopped + 1, 10, 0);
    EXPECT_EQ(after.recorder.steps.at(10).consumed_samples(), 40);
  }
}

TEST_F(TrainingRunTest, AResumeOnAnotherLayoutGoesOnWithinFloatNoise) {
  const RunResult straight = Run(Spec(2));
  ASSERT_OK(Run(Spec(2), {.stop_after = 4}).outcome);
  const RunResult on_four = Run(Spec(4), {.epoch = 2, .lineage = {Entry(1)}, .stop_after = 7});
  ASSERT_OK(on_four.outcome);
  const int64_t first = on_four.recorder.start.step, second = on_four.recorder.checkpoints.back().step();
  v1::TrainingSpec tensor = Spec(1);
  tensor.mutable_parallelism()->set_tensor_model_parallel_size(2);
  const RunResult on_tensor = Run(tensor, {.epoch = 3, .lineage = {Entry(1), Entry(2, 1, first)}});
  ASSERT_OK(on_tensor.outcome);
  EXPECT_EQ(on_tensor.recorder.start.step, second);
  ExpectSameLosses(on_four, straight, first + 1, second, 1e-5);
  ExpectSameLosses(on_tensor, straight, second + 1, 10, 1e-5);
}

TEST_F(TrainingRunTest, ACheckpointOutsideTheLineageIsIgnored) {
  ASSERT_OK(Run(Spec(1), {.stop_after = 6}).outcome);
  // Another attempt forked from step 0 of nothing: what epoch 1 wrote is not its history.
  const RunResult fresh = Run(Spec(1), {.epoch = 2, .lineage = {}});
  ASSERT_OK(fresh.outcome);
  EXPECT_FALSE(fresh.recorder.start.resumed);
}

TEST_F(TrainingRunTest, AnsweredCheckpointRequestsCarryTheirNumber) {
  const RunResult run = Run(Spec(2), {.checkpoint_requests = 3});
  ASSERT_OK(run.outcome);
  ASSERT_EQ(run.recorder.checkpoints.size(), 2u);  // the one asked for, and the last
  EXPECT_EQ(run.recorder.checkpoints[0].request_number(), 3);
  EXPECT_EQ(run.recorder.checkpoints[1].step(), 10);
  EXPECT_EQ(run.recorder.checkpoints[1].request_number(), 0);
}

TEST_F(TrainingRunTest, RetentionKeepsTheLastOnesAndSaysWhichWent) {
  v1::TrainingSpec spec = Spec(2);
  spec.mutable_checkpoint()->set_save_interval(2);
  spec.mutable_checkpoint()->set_keep_last(2);
  const RunResult run = Run(spec);
  ASSERT_OK(run.outcome);
  std::vector<int64_t> deleted;
  for (const v1::Checkpoint& c : run.recorder.checkpoints) {
    if (c.state() == v1::CHECKPOINT_STATE_DELETED) deleted.push_back(c.step());
  }
  EXPECT_EQ(deleted, (std::vector<int64_t>{2, 4, 6}));
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList list,
                       format::ListCheckpoints(posix_, JoinPath(temp_.path(), "checkpoints"), "job-test"));
  ASSERT_EQ(list.complete.size(), 2u);
  EXPECT_EQ(list.complete[0].id.step, 8);
}

// R10: the disk fills up in the middle of the run.
TEST_F(TrainingRunTest, AFullDiskCostsTheSaveAndNothingElse) {
  v1::TrainingSpec spec = Spec(1);
  spec.mutable_checkpoint()->set_save_interval(3);
  ASSERT_OK(Run(spec, {.stop_after = 4}).outcome);
  const std::string root = JoinPath(temp_.path(), "checkpoints");
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList before, format::ListCheckpoints(posix_, root, "job-test"));
  ASSERT_FALSE(before.complete.empty());
  FaultFileSystem full(posix_);
  full.SetFreeBytes(1000);
  const RunResult run = Run(spec, {.epoch = 2, .lineage = {Entry(1)}, .files = &full});
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 bytes")));
  EXPECT_EQ(run.recorder.last_step, 10);  // trained to the end; only the final checkpoint could not be written
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList after, format::ListCheckpoints(posix_, root, "job-test"));
  EXPECT_EQ(after.complete.size(), before.complete.size());
  EXPECT_TRUE(after.rejected.empty());
  ASSERT_TRUE(run.recorder.failed_saves.contains(9));
  EXPECT_THAT(run.recorder.failed_saves.at(9), HasSubstr(JoinPath(root, "step-00000009-e2: ")));
  EXPECT_THAT(run.recorder.failed_saves.at(9), HasSubstr("1000 bytes"));
}

// L8: too large a step makes the loss non-finite; the weights stay, the run fails by name.
TEST_F(TrainingRunTest, NonFiniteStepsAreSkippedCountedAndEndTheRun) {
  v1::TrainingSpec spec = Spec(2);
  spec.mutable_optimizer()->set_lr(1e30);
  spec.mutable_optimizer()->set_clip_grad(0);
  spec.mutable_optimizer()->set_weight_decay(0);
  spec.mutable_scheduler()->set_lr_decay_style("constant");
  spec.mutable_training()->set_max_consecutive_nonfinite_steps(3);
  const RunResult run = Run(spec);
  EXPECT_THAT(run.outcome,
              testing::StatusIs(absl::StatusCode::kAborted, HasSubstr("was not finite in 3 steps in a row")));
  const v1::StepMetrics& last = run.recorder.steps.rbegin()->second;
  EXPECT_TRUE(last.skipped());
  EXPECT_EQ(last.skipped_total(), 3);
  EXPECT_TRUE(std::isnan(last.grad_norm()));
  EXPECT_FALSE(std::signbit(last.grad_norm())) << "printed as -nan";
}

TEST_F(TrainingRunTest, TheLastCheckpointBeforeSkippedStepsIsKept) {
  v1::TrainingSpec spec = Spec(2);
  spec.mutable_optimizer()->set_lr(1e30);
  spec.mutable_optimizer()->set_clip_grad(0);
  spec.mutable_optimizer()->set_weight_decay(0);
  spec.mutable_scheduler()->set_lr_decay_style("constant");
  spec.mutable_training()->set_max_consecutive_nonfinite_steps(5);
  spec.mutable_checkpoint()->set_save_interval(1);
  spec.mutable_checkpoint()->set_keep_last(1);
  const RunResult run = Run(spec);
  ASSERT_FALSE(run.outcome.ok());
  int64_t good = 0;  // the last step that was not skipped
  for (const auto& [step, metrics] : run.recorder.steps) good = metrics.skipped() ? good : step;
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList list,
                       format::ListCheckpoints(posix_, JoinPath(temp_.path(), "checkpoints"), "job-test"));
  ASSERT_EQ(list.complete.size(), 2u);
  EXPECT_EQ(list.complete[0].id.step, good);
  EXPECT_GT(list.complete[1].id.step, good + 1);
}

TEST_F(TrainingRunTest, AnotherJobsCheckpointsAreNeitherResumedFromNorRemoved) {
  v1::TrainingSpec spec = Spec(1);
  spec.mutable_checkpoint()->set_keep_last(1);
  ASSERT_OK(Run(spec).outcome);
  const std::string root = JoinPath(temp_.path(), "checkpoints");
  const RunResult other = Run(spec, {.epoch = 2, .lineage = {Entry(1)}, .job_id = "job-other"});
  EXPECT_THAT(other.outcome, testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("job-test")));
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList list, format::ListCheckpoints(posix_, root, "job-test"));
  ASSERT_EQ(list.complete.size(), 1u);
  // Its weights alone may be taken.
  spec.mutable_model()->set_pretrained_checkpoint(list.complete[0].directory);
  const RunResult tuned = Run(spec, {.epoch = 2, .job_id = "job-other", .checkpoints = "others"});
  ASSERT_OK(tuned.outcome);
  EXPECT_FALSE(tuned.recorder.start.resumed);
}

}  // namespace
}  // namespace slipway::engine::train
