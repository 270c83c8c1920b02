// Whole runs that save while they train: what is saved is the state of its step whatever the next steps do, training
// goes on while the disk does not, and a save that fails costs nothing but itself.
#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "common/fault_file_system.h"
#include "common/str_cat.h"
#include "engine/format/checkpoint_directory.h"
#include "tests/support/training_runs.h"

namespace slipway::engine::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TrainingSaveTest : public TrainingRunTest {
 protected:
  v1::TrainingSpec SavingSpec(int dp, const std::string& precision, bool sharded) {
    v1::TrainingSpec spec = Spec(dp, sharded ? "optim" : "no_shard");
    spec.mutable_precision()->set_name(precision);
    spec.mutable_scheduler()->set_lr_decay_iters(10);  // a run that ends early has the same rates
    spec.mutable_checkpoint()->set_save_interval(4);
    spec.mutable_checkpoint()->set_keep_last(0);
    return spec;
  }
  format::CheckpointList List() { return *format::ListCheckpoints(posix_, root_, "job-test"); }
  std::vector<int64_t> CompleteSteps() {
    std::vector<int64_t> steps;
    for (const format::CheckpointEntry& entry : List().complete) steps.push_back(entry.id.step);
    return steps;
  }
  // By file, of the tensors of a checkpoint.
  std::map<std::string, std::string> Checksums(int64_t step) {
    std::map<std::string, std::string> checksums;
    for (const format::CheckpointEntry& entry : List().complete) {
      if (entry.id.step != step) continue;
      EXPECT_OK(format::VerifyChecksums(posix_, entry.directory, entry.manifest));
      for (const auto& [name, file] : entry.manifest.files) checksums[name] = file.checksum;
    }
    return checksums;
  }

  const std::string root_ = temp_.Path("checkpoints");
};

TEST_F(TrainingSaveTest, StepsGoOnWhileASaveIsHeldUpAndItsBytesAreThoseOfItsStep) {
  struct Case {
    int dp;
    const char* precision;
    bool sharded;
    const char* held;
  };
  for (const Case& c :
       {Case{2, "fp32", true, "rank-00001.safetensors"}, Case{2, "bf16_mixed", true, "rank-00000.safetensors"},
        Case{2, "fp32", false, "rank-00000.safetensors"}}) {
    v1::TrainingSpec spec = SavingSpec(c.dp, c.precision, c.sharded);
    v1::TrainingSpec ends_there = spec;
    ends_there.mutable_training()->set_train_iters(4);
    ASSERT_OK(Run(ends_there).outcome);
    const auto want = Checksums(4);
    ASSERT_EQ(want.size(), c.sharded ? 3u : 2u);  // with config.json

    FaultFileSystem disk(posix_);
    disk.HoldWritesOf(c.held);
    const RunResult run = Run(spec, {.files = &disk, .on_step = [&](int64_t step) {
                                       if (step != 7) return;
                                       disk.AwaitHeldWrite();  // three steps after it was begun
                                       EXPECT_THAT(CompleteSteps(), IsEmpty());
                                       EXPECT_TRUE(List().rejected.empty())
                                           << "what a kill leaves now is no checkpoint";
                                       disk.ReleaseWrites();
                                     }});
    ASSERT_OK(run.outcome);
    EXPECT_THAT(CompleteSteps(), ElementsAre(4, 8, 10));
    EXPECT_EQ(Checksums(4), want) << c.precision;
    ASSERT_EQ(run.recorder.checkpoints.size(), 3u);
    EXPECT_EQ(run.recorder.checkpoints[0].step(), 4);
    EXPECT_GT(run.recorder.checkpoints[0].size_bytes(), 100'000);
    EXPECT_TRUE(run.recorder.checkpoints[0].has_commit_time());
  }
}

// One rank's state is larger than its buffer: the optimizer waits for the disk and the bytes are right all the same.
TEST_F(TrainingSaveTest, ASmallBufferSlowsTheRunAndChangesNothing) {
  v1::TrainingSpec spec = SavingSpec(1, "bf16_mixed", true);
  v1::TrainingSpec ends_there = spec;
  ends_there.mutable_training()->set_train_iters(4);
  ASSERT_OK(Run(ends_there).outcome);
  const auto want = Checksums(4);
  spec.mutable_checkpoint()->set_save_buffer_mib(1);
  FaultFileSystem disk(posix_);
  disk.HoldWritesOf("rank-00000.safetensors");
  std::thread release([&] {
    disk.AwaitHeldWrite();
    disk.ReleaseWrites();
  });
  const RunResult run = Run(spec, {.files = &disk});
  release.join();
  ASSERT_OK(run.outcome);
  EXPECT_EQ(Checksums(4), want);
}

TEST_F(TrainingSaveTest, AnErrorAtAnyMomentOfASaveCostsThatSaveAlone) {
  v1::TrainingSpec spec = SavingSpec(2, "fp32", true);
  spec.mutable_training()->set_train_iters(6);
  spec.mutable_checkpoint()->set_save_interval(2);
  int failures = 0;
  for (int nth = 2; nth <= 40; nth += 3) {
    FaultFileSystem disk(posix_);
    const RunResult run = Run(spec, {.files = &disk, .on_step = [&](int64_t step) {
                                       if (step == 1)
                                         disk.FailAt(nth, nth % 2 == 0 ? FaultKind::kShortWrite : FaultKind::kIoError);
                                     }});
    ASSERT_OK(run.outcome) << nth;
    EXPECT_EQ(run.recorder.last_step, 6);
    const format::CheckpointList list = List();
    EXPECT_THAT(list.rejected, IsEmpty()) << nth;
    ASSERT_GE(list.complete.size(), 2u) << nth;
    EXPECT_EQ(list.complete.back().id.step, 6);
    failures += run.recorder.checkpoints.size() == 2u;
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, posix_.List(root_));
    for (const std::string& name : names) EXPECT_EQ(name.find(".saving"), std::string::npos) << nth;
  }
  EXPECT_GT(failures, 8);
}

TEST_F(TrainingSaveTest, ARequestWhoseSaveFailedIsAnsweredByTheNextThatSucceeds) {
  FaultFileSystem disk(posix_);
  disk.SetFreeBytes(0);
  // The save of step 0 is over once that of step 4 was begun, which may find the disk full or not.
  const auto make_room = [&](int64_t step) {
    if (step == 5) disk.SetFreeBytes(int64_t{1} << 40);
  };
  const RunResult run =
      Run(SavingSpec(1, "fp32", true), {.checkpoint_requests = 3, .files = &disk, .on_step = make_room});
  ASSERT_OK(run.outcome);
  EXPECT_TRUE(run.recorder.failed_saves.contains(0));
  std::vector<int64_t> numbers;
  for (const v1::Checkpoint& checkpoint : run.recorder.checkpoints) numbers.push_back(checkpoint.request_number());
  ASSERT_FALSE(numbers.empty());
  EXPECT_EQ(numbers.front(), 3);
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 3), 1);
}

TEST_F(TrainingSaveTest, WhatASaveThatDiedLeftBehindGoesWithTheNext) {
  const std::string left = format::TemporaryDirectory(root_, {3, 1});
  ASSERT_OK(Run(SavingSpec(1, "fp32", true), {.on_step =
                                                  [&](int64_t step) {
                                                    if (step == 1) {
                                                      ASSERT_OK(posix_.MakeDirectories(left));
                                                    }
                                                  }})
                .outcome);
  ASSERT_OK_AND_ASSIGN(const bool is_there, posix_.Exists(left));
  EXPECT_FALSE(is_there);
}

// All ranks end alike, so the save of the step before is seen to its end.
TEST_F(TrainingSaveTest, ARunThatEndsWithNonFiniteStepsKeepsTheSaveUnderWay) {
  v1::TrainingSpec spec = SavingSpec(2, "fp32", true);
  spec.mutable_checkpoint()->set_save_interval(1);
  spec.mutable_optimizer()->set_lr(1e30);
  spec.mutable_optimizer()->set_clip_grad(0);
  spec.mutable_optimizer()->set_weight_decay(0);
  spec.mutable_scheduler()->set_lr_decay_style("constant");
  spec.mutable_training()->set_max_consecutive_nonfinite_steps(3);
  FaultFileSystem disk(posix_);
  const RunResult run = Run(spec, {.files = &disk});
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kAborted, HasSubstr("was not finite in 3 steps")));
  const std::vector<int64_t> steps = CompleteSteps();
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back(), run.recorder.last_step - 1);
  EXPECT_EQ(run.recorder.checkpoints.back().step(), steps.back());
}

}  // namespace
}  // namespace slipway::engine::train
