// Whole runs on threads as ranks, for tests: a small Llama over mock data or chats, in a directory of its own.
#ifndef SLIPWAY_TESTS_SUPPORT_TRAINING_RUNS_H_
#define SLIPWAY_TESTS_SUPPORT_TRAINING_RUNS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/posix_file_system.h"
#include "common/str_cat.h"
#include "engine/comm/thread_communicator.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"
#include "engine/train/training_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::train {

inline constexpr char kTestModel[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/llama";
inline constexpr char kTestTokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/toy_tokenizer";

// What rank 0 said.
class Recorder final : public TrainObserver {
 public:
  void Phase(std::string_view) override {}
  void Ready(const StartPoint& point) override { start = point; }
  void StepDone(int64_t step) override {
    last_step = step;
    if (on_step) on_step(step);
  }
  void Metrics(const v1::StepMetrics& metrics) override { steps[metrics.step()] = metrics; }
  void Evaluated(const v1::EvalMetrics& metrics) override { evals[metrics.step()] = metrics; }
  void Committed(const v1::Checkpoint& checkpoint) override { checkpoints.push_back(checkpoint); }
  void SaveFailed(int64_t step, const std::string& path, const absl::Status& reason) override {
    failed_saves[step] = StrCat(path, ": ", ToStd(reason.message()));
  }

  std::function<void(int64_t step)> on_step;
  StartPoint start;
  int64_t last_step = 0;
  std::map<int64_t, v1::StepMetrics> steps;
  std::map<int64_t, v1::EvalMetrics> evals;
  std::vector<v1::Checkpoint> checkpoints;
  std::map<int64_t, std::string> failed_saves;
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
  std::function<void(int64_t step)> on_step;  // rank 0, in its training thread
  std::string job_id = "job-test";
  std::string checkpoints = "checkpoints";
  // What rank 1 has otherwise than the others, if anything.
  std::optional<v1::TrainingSpec> spec_of_rank_1;
  std::string checkpoints_of_rank_1;
};

struct RunResult {
  Recorder recorder;
  absl::StatusOr<TrainOutcome> outcome = absl::UnknownError("not run");
  absl::StatusOr<TrainOutcome> outcome_of_rank_1 = absl::UnknownError("not run");
};

class TrainingRunTest : public ::testing::Test {
 protected:
  v1::TrainingSpec Spec(int dp, const std::string& sharding = "optim") {
    v1::TrainingSpec spec;
    spec.set_name("run");
    spec.mutable_model()->set_hf_path(kTestModel);
    spec.mutable_dataset()->set_kind("mock");
    spec.mutable_dataset()->set_mock_num_samples(30);
    spec.mutable_training()->set_train_iters(10);
    spec.mutable_training()->set_global_batch_size(4);
    spec.mutable_training()->set_seq_length(24);
    spec.mutable_optimizer()->set_lr(1e-3);
    spec.mutable_parallelism()->set_data_parallel_size(dp);
    spec.mutable_parallelism()->set_data_parallel_sharding_strategy(sharding);
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
    spec.mutable_tokenizer()->set_path(kTestTokenizer);
    spec.mutable_training()->set_seq_length(80);
    spec.mutable_validation()->set_eval_interval(5);
    return spec;
  }

  RunResult Run(const v1::TrainingSpec& unresolved, const RunOptions& options = {}) {
    const v1::TrainingSpec spec = spec::Resolve(unresolved);
    if (options.epoch == 1) {  // a new job
      EXPECT_OK(posix_.RemoveTree(JoinPath(temp_.path(), "checkpoints")));
    }
    const topology::Mesh mesh = spec::MeshOf(spec.parallelism()).value();
    RunResult result;
    comm::RunRanks(static_cast<int>(mesh.sizes().World()), [&](int rank, comm::GroupFactory& factory) {
      std::vector<int> everybody;
      for (int r = 0; r < mesh.sizes().World(); ++r) everybody.push_back(r);
      const auto control = comm::MakeControlChannel(factory.MakeGroup("control", everybody));
      const comm::CommPtr save_group = factory.MakeGroup("save", everybody);
      const comm::ParallelGroups groups = comm::MakeParallelGroups(mesh, rank, factory);
      const RealClock clock;
      TrainEnvironment environment;
      environment.mesh = &mesh;
      environment.rank = rank;
      environment.groups = &groups;
      environment.control = control.get();
      environment.save_group = save_group;
      environment.epoch = options.epoch;
      environment.lineage = options.lineage;
      environment.job_id = options.job_id;
      environment.output_dir = temp_.path();
      environment.checkpoint_dir = JoinPath(temp_.path(), options.checkpoints);
      if (rank == 1 && !options.checkpoints_of_rank_1.empty()) {
        environment.checkpoint_dir = options.checkpoints_of_rank_1;
      }
      environment.files = options.files != nullptr ? options.files : &posix_;
      environment.clock = &clock;
      Recorder other;
      if (rank == 0) result.recorder.on_step = options.on_step;
      Recorder& recorder = rank == 0 ? result.recorder : other;
      const StopAfter control_of_rank(recorder, rank == 0 ? options.stop_after : 0, options.checkpoint_requests);
      const bool other_spec = rank == 1 && options.spec_of_rank_1.has_value();
      const v1::TrainingSpec own = other_spec ? spec::Resolve(*options.spec_of_rank_1) : spec;
      const absl::StatusOr<TrainOutcome> outcome = RunTraining(own, environment, control_of_rank, recorder);
      if (rank == 0) result.outcome = outcome;
      if (rank == 1) result.outcome_of_rank_1 = outcome;
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

}  // namespace slipway::engine::train

#endif  // SLIPWAY_TESTS_SUPPORT_TRAINING_RUNS_H_
