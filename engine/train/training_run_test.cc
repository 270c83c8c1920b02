// Whole runs on threads as ranks: the loss does not depend on the layout, a resumed run is the run that was not
// stopped, and a save that fails costs nothing but itself.
#include "engine/train/training_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "common/fault_file_system.h"
#include "common/posix_file_system.h"
#include "engine/comm/thread_communicator.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/spec/resolve.h"
#include "engine/train/run_options.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::train {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/llama";
constexpr char kTokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/toy_tokenizer";

// What rank 0 said.
class Recorder final : public TrainObserver {
 public:
  void Phase(std::string_view) override {}
  void Ready(const StartPoint& point) override { start = point; }
  void StepDone(int64_t step) override { last_step = step; }
  void Metrics(const v1::StepMetrics& metrics) override { steps[metrics.step()] = metrics; }
  void Evaluated(const v1::EvalMetrics& metrics) override { evals[metrics.step()] = metrics; }
  void Committed(const v1::Checkpoint& checkpoint) override { checkpoints.push_back(checkpoint); }

  StartPoint start;
  int64_t last_step = 0;
  std::map<int64_t, v1::StepMetrics> steps;
  std::map<int64_t, v1::EvalMetrics> evals;
  std::vector<v1::Checkpoint> checkpoints;
};

// Asks rank 0 to stop once a step is done.
class StopAfter final : public TrainControl {
 public:
  StopAfter(const Recorder& recorder, int64_t step, int64_t requests = 0)
      : recorder_(recorder), step_(step), requests_(requests) {}
  bool stop_requested() const override { return step_ > 0 && recorder_.last_step >= step_; }
  int64_t checkpoint_requests() const override { return requests_; }

 private:
  const Recorder& recorder_;
  const int64_t step_;
  const int64_t requests_;
};

struct RunOptions {
  int64_t epoch = 1;
  std::vector<v1::LineageEntry> lineage;
  int64_t stop_after = 0;
  int64_t checkpoint_requests = 0;
  FileSystem* files = nullptr;
};

struct RunResult {
  Recorder recorder;
  absl::StatusOr<TrainOutcome> outcome = absl::UnknownError("not run");
};

class TrainingRunTest : public ::testing::Test {
 protected:
  v1::TrainingSpec Spec(int dp, bool sharded = true) {
    v1::TrainingSpec spec;
    spec.set_name("run");
    spec.mutable_model()->set_hf_path(kModel);
    spec.mutable_dataset()->set_kind("mock");
    spec.mutable_dataset()->set_mock_num_samples(30);
    spec.mutable_training()->set_train_iters(10);
    spec.mutable_training()->set_global_batch_size(4);
    spec.mutable_training()->set_seq_length(24);
    spec.mutable_optimizer()->set_lr(1e-3);
    spec.mutable_parallelism()->set_data_parallel_size(dp);
    spec.mutable_parallelism()->set_use_distributed_optimizer(sharded);
    spec.mutable_precision()->set_name("fp32");
    spec.mutable_checkpoint()->set_save_interval(0);
    return spec;
  }
  // Chats of very different lengths: uneven masks on every rank.
  v1::TrainingSpec ChatSpec(int dp) {
    v1::TrainingSpec spec = Spec(dp);
    std::string lines;
    for (int i = 0; i < 16; ++i) {
      lines += R"({"messages":[{"role":"user","content":")" + std::string(1 + i % 5 * 7, 'q') +
               R"("},{"role":"assistant","content":")" + std::string(1 + i * i % 11, 'a' + i) + "\"}]}\n";
    }
    const std::string path = JoinPath(temp_.path(), "chat.jsonl");
    EXPECT_OK(posix_.WriteFileAtomically(path, lines));
    spec.mutable_dataset()->set_kind("chat");
    spec.mutable_dataset()->set_path(path);
    spec.mutable_dataset()->set_validation_path(path);
    spec.mutable_tokenizer()->set_path(kTokenizer);
    spec.mutable_training()->set_seq_length(80);
    spec.mutable_validation()->set_eval_interval(5);
    return spec;
  }

  RunResult Run(const v1::TrainingSpec& unresolved, const RunOptions& options = {}) {
    const v1::TrainingSpec spec = spec::Resolve(unresolved);
    if (options.epoch == 1) {  // a new job
      EXPECT_OK(posix_.RemoveTree(JoinPath(temp_.path(), "checkpoints")));
    }
    const topology::Mesh mesh = topology::Mesh::Create(MeshSizesOf(spec.parallelism())).value();
    RunResult result;
    comm::RunRanks(static_cast<int>(mesh.sizes().World()), [&](int rank, comm::GroupFactory& factory) {
      std::vector<int> everybody;
      for (int r = 0; r < mesh.sizes().World(); ++r) everybody.push_back(r);
      const auto control = comm::MakeControlChannel(factory.MakeGroup("control", everybody));
      const comm::ParallelGroups groups = comm::MakeParallelGroups(mesh, rank, factory);
      const RealClock clock;
      TrainEnvironment environment;
      environment.mesh = &mesh;
      environment.rank = rank;
      environment.groups = &groups;
      environment.control = control.get();
      environment.epoch = options.epoch;
      environment.lineage = options.lineage;
      environment.job_id = "job-test";
      environment.output_dir = temp_.path();
      environment.checkpoint_dir = JoinPath(temp_.path(), "checkpoints");
      environment.files = options.files != nullptr ? options.files : &posix_;
      environment.clock = &clock;
      Recorder other;
      Recorder& recorder = rank == 0 ? result.recorder : other;
      const StopAfter control_of_rank(recorder, rank == 0 ? options.stop_after : 0, options.checkpoint_requests);
      const absl::StatusOr<TrainOutcome> outcome = RunTraining(spec, environment, control_of_rank, recorder);
      if (rank == 0) result.outcome = outcome;
    });
    return result;
  }

  static v1::LineageEntry Entry(int64_t epoch, int64_t from_epoch = 0, int64_t from_step = 0) {
    v1::LineageEntry entry;
    entry.set_epoch(epoch);
    entry.set_from_epoch(from_epoch);
    entry.set_from_step(from_step);
    return entry;
  }

  void ExpectSameLosses(const RunResult& got, const RunResult& want, int64_t first, int64_t last, double tolerance) {
    for (int64_t step = first; step <= last; ++step) {
      ASSERT_TRUE(got.recorder.steps.contains(step)) << step;
      const double a = got.recorder.steps.at(step).loss(), b = want.recorder.steps.at(step).loss();
      EXPECT_LE(std::abs(a - b), tolerance * b) << "step " << step;
    }
  }

  testing::TempDir temp_;
  PosixFileSystem posix_;
};

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
  const int64_t first = on_data.recorder.start.step, second = on_data.recorder.checkpoints[0].step();
  context.mutable_parallelism()->set_tensor_model_parallel_size(2);
  const RunResult on_both = Run(context, {.epoch = 3, .lineage = {Entry(1), Entry(2, 1, first)}});
  ASSERT_OK(on_both.outcome);
  EXPECT_EQ(on_both.recorder.start.step, second);
  ExpectSameLosses(on_data, straight, first + 1, second, 1e-5);
  ExpectSameLosses(on_both, straight, second + 1, 10, 1e-5);
}

TEST_F(TrainingRunTest, AStoppedAndResumedRunIsBitForBitTheRunThatWasNot) {
  for (const bool sharded : {true, false}) {
    v1::TrainingSpec spec = Spec(2, sharded);
    spec.mutable_model()->set_hidden_dropout(0.1);  // R7: random numbers go on as well
    const RunResult straight = Run(spec);
    const RunResult before = Run(spec, {.stop_after = 4});
    ASSERT_OK(before.outcome);
    EXPECT_EQ(*before.outcome, TrainOutcome::kStopped);
    ASSERT_EQ(before.recorder.checkpoints.size(), 1u);
    const int64_t stopped = before.recorder.checkpoints[0].step();
    EXPECT_LT(stopped, 10);
    const RunResult after = Run(spec, {.epoch = 2, .lineage = {Entry(1)}});
    ASSERT_OK(after.outcome);
    EXPECT_TRUE(after.recorder.start.resumed);
    EXPECT_EQ(after.recorder.start.step, stopped);
    ExpectSameLosses(after, straight, stopped + 1, 10, 0);
    EXPECT_EQ(after.recorder.steps.at(10).consumed_samples(), 40);
  }
}

TEST_F(TrainingRunTest, AResumeOnAnotherLayoutGoesOnWithinFloatNoise) {
  const RunResult straight = Run(Spec(2));
  ASSERT_OK(Run(Spec(2), {.stop_after = 4}).outcome);
  const RunResult on_four = Run(Spec(4), {.epoch = 2, .lineage = {Entry(1)}, .stop_after = 7});
  ASSERT_OK(on_four.outcome);
  const int64_t first = on_four.recorder.start.step, second = on_four.recorder.checkpoints[0].step();
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
                       format::ListCheckpoints(posix_, JoinPath(temp_.path(), "checkpoints")));
  ASSERT_EQ(list.complete.size(), 2u);
  EXPECT_EQ(list.complete[0].id.step, 8);
}

// R10: the disk fills up in the middle of the run.
TEST_F(TrainingRunTest, AFullDiskCostsTheSaveAndNothingElse) {
  v1::TrainingSpec spec = Spec(1);
  spec.mutable_checkpoint()->set_save_interval(3);
  ASSERT_OK(Run(spec, {.stop_after = 4}).outcome);
  const std::string root = JoinPath(temp_.path(), "checkpoints");
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList before, format::ListCheckpoints(posix_, root));
  ASSERT_FALSE(before.complete.empty());
  FaultFileSystem full(posix_);
  full.SetFreeBytes(1000);
  const RunResult run = Run(spec, {.epoch = 2, .lineage = {Entry(1)}, .files = &full});
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 bytes")));
  EXPECT_EQ(run.recorder.last_step, 10);  // trained to the end; only the final checkpoint could not be written
  ASSERT_OK_AND_ASSIGN(const format::CheckpointList after, format::ListCheckpoints(posix_, root));
  EXPECT_EQ(after.complete.size(), before.complete.size());
  EXPECT_TRUE(after.rejected.empty());
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
}

}  // namespace
}  // namespace slipway::engine::train
