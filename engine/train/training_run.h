// One attempt of a training run on one rank: from loading to the last checkpoint.
#ifndef SLIPWAY_ENGINE_TRAIN_TRAINING_RUN_H_
#define SLIPWAY_ENGINE_TRAIN_TRAINING_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "engine/comm/control_channel.h"
#include "engine/comm/parallel_groups.h"
#include "engine/topology/mesh.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/metrics.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::train {

struct StartPoint {
  int64_t step = 0;  // steps already done
  bool resumed = false;
  int64_t from_epoch = 0;
  std::string spec_hash;
};

// Told what happens, from the training thread; must not block.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void Phase(std::string_view phase) = 0;   // "load", "step", "save" (waits for a save), "eval", "export"
  virtual void Ready(const StartPoint& start) = 0;  // loaded, before the first step
  virtual void StepDone(int64_t step) = 0;          // on every rank
  virtual void Metrics(const v1::StepMetrics& metrics) = 0;    // rank 0
  virtual void Evaluated(const v1::EvalMetrics& metrics) = 0;  // rank 0
  // Rank 0: durable now, or deleted (its state says). Also the one that the run resumed from.
  virtual void Committed(const v1::Checkpoint& checkpoint) = 0;
  // Rank 0: the save of `step` to `path` failed between steps; the older checkpoints are as they were, training goes
  // on.
  virtual void SaveFailed(int64_t step, const std::string& path, const absl::Status& reason) = 0;
};

// What is wanted of the run; asked between steps.
class TrainControl {
 public:
  virtual ~TrainControl() = default;
  virtual bool stop_requested() const = 0;
  virtual int64_t checkpoint_requests() const = 0;
};

// Where this rank stands. Groups, control, clock and files outlive the run.
struct TrainEnvironment {
  const topology::Mesh* mesh = nullptr;
  int rank = 0;
  const comm::ParallelGroups* groups = nullptr;
  comm::ControlChannel* control = nullptr;
  comm::CommPtr save_group;  // all ranks, on CPU; nothing but saving uses it
  at::Device device = at::kCPU;
  int64_t epoch = 1;
  std::vector<v1::LineageEntry> lineage;
  std::string job_id;
  std::string output_dir;
  std::string checkpoint_dir;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
};

enum class TrainOutcome {
  kCompleted,  // the last step is done and its checkpoint durable
  kStopped,    // stopped as asked, checkpoint durable
};

// Runs until the end or a stop. Every rank of the attempt calls it; all return alike unless one fails. Errors carry a
// cause class (guarded_call.h).
absl::StatusOr<TrainOutcome> RunTraining(const v1::TrainingSpec& resolved, const TrainEnvironment& environment,
                                         const TrainControl& control, TrainObserver& observer);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_TRAINING_RUN_H_
