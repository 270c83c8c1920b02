// Whole runs over data that is bad, changes, or is short: what the data is to blame for is said so, and is not retried.
#include <gmock/gmock.h>

#include "common/str_cat.h"
#include "engine/train/guarded_call.h"
#include "tests/support/corpus_files.h"
#include "tests/support/training_runs.h"

namespace slipway::engine::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string CauseOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kCausePayload);
  return payload.has_value() ? std::string(*payload) : "none";
}

class TrainingDataTest : public TrainingRunTest {
 protected:
  // One rank, which meets every fault itself. The training share is all of it, in file order: step k reads documents
  // 4 (k - 1) to 4 k - 1, about.
  v1::TrainingSpec IndexedSpec(const std::vector<std::vector<int32_t>>& documents) {
    v1::TrainingSpec spec = Spec(1);
    v1::DatasetSpec* dataset = spec.mutable_dataset();
    dataset->clear_mock_num_samples();
    dataset->set_kind("indexed");
    dataset->set_path(testing::WriteDataset(posix_, temp_.Path("data"), documents));
    dataset->set_split("1,0,0");
    dataset->set_shuffle(false);
    return spec;
  }
  static std::vector<std::vector<int32_t>> Documents() {
    std::vector<std::vector<int32_t>> documents(50);
    for (int32_t d = 0; d < 50; ++d) {
      for (int32_t i = 0; i < 25; ++i) documents[d].push_back((d * 7 + i * 3) % 260);
    }
    return documents;
  }
};

TEST_F(TrainingDataTest, AnIdThatTheModelDoesNotHaveIsAFaultOfTheData) {
  std::vector<std::vector<int32_t>> documents = Documents();
  documents[20][3] = 260;
  const RunResult run = Run(IndexedSpec(documents));
  EXPECT_THAT(run.outcome,
              testing::StatusIs(absl::StatusCode::kDataLoss,
                                AllOf(HasSubstr("data.bin: document 20 (sequence 20, token 3) holds the id 260"),
                                      HasSubstr("the model has 260 ids"))));
  EXPECT_EQ(CauseOf(run.outcome.status()), "DATA");
  EXPECT_GT(run.recorder.last_step, 2);
}

TEST_F(TrainingDataTest, AnEvaluationBlamesItsDataToo) {
  v1::TrainingSpec spec = IndexedSpec(Documents());
  std::vector<std::vector<int32_t>> held_out = Documents();
  held_out[2][1] = 1000;
  spec.mutable_dataset()->set_validation_path(testing::WriteDataset(posix_, temp_.Path("held-out"), held_out));
  spec.mutable_validation()->set_eval_interval(2);
  const RunResult run = Run(spec);
  EXPECT_THAT(run.outcome, testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("held-out.bin: document 2")));
  EXPECT_EQ(CauseOf(run.outcome.status()), "DATA");
}

TEST_F(TrainingDataTest, DataThatIsReplacedUnderTheRunIsAFaultOfTheData) {
  const v1::TrainingSpec spec = IndexedSpec(Documents());
  testing::WriteDataset(posix_, temp_.Path("other"), {Documents()[0]});
  const RunResult run = Run(spec, {.on_step = [&](int64_t step) {
                              if (step != 3) return;
                              // Renamed over the old files, which stay mapped: nothing is cut under a reader.
                              for (const char* end : {".bin", ".idx"}) {
                                EXPECT_OK(posix_.Rename(temp_.Path("other") + end, temp_.Path("data") + end));
                              }
                            }});
  EXPECT_THAT(run.outcome,
              testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("was changed while it was in use")));
  EXPECT_EQ(CauseOf(run.outcome.status()), "DATA");
  EXPECT_LT(run.recorder.last_step, 10);
}

// The megatron order has as many samples as it was built for. Evaluations read the validation set from its start and,
// where they ask for more than it holds, again.
TEST_F(TrainingDataTest, AMegatronRunReadsItsLastSampleAndEvaluatesOnLittleData) {
  v1::TrainingSpec spec = IndexedSpec(Documents());
  spec.mutable_dataset()->clear_shuffle();
  spec.mutable_dataset()->set_sample_order("megatron");
  spec.mutable_dataset()->set_split("96,4,0");  // 2 documents of 25 tokens, 2 samples
  spec.mutable_validation()->set_eval_interval(5);
  spec.mutable_validation()->set_eval_iters(3);  // 12 samples
  const RunResult run = Run(spec);
  ASSERT_OK(run.outcome);
  EXPECT_EQ(run.recorder.last_step, 10);
  EXPECT_EQ(run.recorder.evals.at(10).loss_tokens(), 12 * 24);
  // Beyond what was built there is no order to go on with: a fault, and the same with every restart.
  spec.mutable_dataset()->set_requested_samples(20);
  spec.mutable_dataset()->set_split("40,60,0");  // 20 documents, 500 tokens
  const RunResult beyond = Run(spec);
  EXPECT_THAT(beyond.outcome, testing::StatusIs(absl::StatusCode::kOutOfRange,
                                                HasSubstr("of the megatron order was asked for, which has 20")));
  EXPECT_EQ(CauseOf(beyond.outcome.status()), "DATA");
}

}  // namespace
}  // namespace slipway::engine::train
