// What a step measured, read from the device once the next step is under way, so that training never waits for a
// metric.
#ifndef SLIPWAY_ENGINE_TRAIN_STEP_REPORTER_H_
#define SLIPWAY_ENGINE_TRAIN_STEP_REPORTER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "engine/checkpoint/run_state.h"
#include "engine/comm/parallel_groups.h"
#include "engine/optim/adamw.h"
#include "engine/train/training_run.h"

namespace slipway::engine::train {

struct ReporterOptions {
  int64_t log_interval = 1;
  int64_t max_consecutive_nonfinite = 10;
  double flops_per_token = 0;        // forward and backward, mean over a full sequence
  double peak_flops_per_second = 0;  // of all ranks; 0: unknown
  int64_t epoch = 1;
  int64_t global_batch_size = 0;
  bool reports = false;  // this rank speaks for the job
};

// A step as it was launched: everything that is known on the host, and tensors for the rest.
struct LaunchedStep {
  int64_t step = 0;
  double learning_rate = 0;
  double total_weight = 0;
  int64_t consumed_samples = 0;  // after it
  at::Tensor sums;               // fp64 [2] on the device: Σ loss and tokens, over all ranks
  at::Tensor routing;            // nn::RoutingStatistics::table over all ranks; undefined without experts
  optim::StepOutcome outcome;
  absl::Duration started;
  absl::Duration data_wait;
};

// A NaN as it is printed and compared everywhere: its sign bit, which depends on the operation that made it, cleared.
double WithPlainNan(double value);

// Thread-safety: the training thread.
class StepReporter {
 public:
  StepReporter(const ReporterOptions& options, const Clock& clock, TrainObserver& observer, checkpoint::RunState& state)
      : options_(options), clock_(clock), observer_(observer), state_(state) {}

  // Σ over the data-parallel ranks and the pipeline of (this rank's loss sum, this rank's tokens).
  static at::Tensor SumOverRanks(const at::Tensor& loss_sum, int64_t tokens, const comm::ParallelGroups& groups,
                                 at::Device device);

  // Reads the step before this one (on CPU: this one at once). Aborted, alike on all ranks, after too many steps in a
  // row that were not finite.
  absl::Status Launched(LaunchedStep step);
  // Reads what is still out; before a checkpoint and at the end.
  absl::Status Flush();

 private:
  absl::Status Read(const LaunchedStep& step);

  const ReporterOptions options_;
  const Clock& clock_;
  TrainObserver& observer_;
  checkpoint::RunState& state_;
  std::optional<LaunchedStep> pending_;
  absl::Duration last_read_ = -absl::InfiniteDuration();
};

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_STEP_REPORTER_H_
