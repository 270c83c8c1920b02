// Saves checkpoints while training goes on.
//
//   CheckpointSaver saver(files, store, groups, save_group, buffer_bytes, clock);
//   optimizer.SetListener(&saver);
//   saver.Begin(request);               // between two steps, on all ranks: the state as it is now
//   ... steps ...
//   if (saver.finished()) outcome = saver.Take();
//
// A save runs on a thread of its own and reads the state through a bounded ring (snapshot_ring.h); the optimizer waits
// for it only where the ring is full. Each rank writes its slices as they lie, one safetensors file a rank, into a
// temporary directory; once all have written, rank 0 writes the manifest and renames. The threads of all ranks agree
// over a group that nothing else uses, so the outcome of a save is the same on all ranks, whatever their training
// threads do meanwhile. At most one save is under way. Thread-safety: the training thread.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_SAVER_H_
#define SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_SAVER_H_

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "engine/checkpoint/rank_part.h"
#include "engine/checkpoint/run_state.h"
#include "engine/checkpoint/snapshot_ring.h"
#include "engine/comm/parallel_groups.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/flat_store.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::checkpoint {

struct SaveRequest {
  std::string root;
  std::string job_id;
  int64_t epoch = 0;
  RunState state;
  v1::TrainingSpec spec;  // resolved
  std::vector<v1::LineageEntry> lineage;
  std::string config_json;  // the model's config.json, so that an export needs nothing else
  // Committed checkpoints to keep; 0: all. The last one saved before steps were skipped stays beside them.
  int32_t keep_last = 2;
  int64_t request_number = 0;
};

// What changed, in order: the committed checkpoint first (with its size on rank 0), then, on rank 0, those that
// retention deleted. Or why there is no checkpoint, alike on all ranks: an error on one rank (a full disk) is an error
// on all, and nothing but the temporary directory, which is removed, was touched. ResourceExhausted when the disk is
// too full, before anything is written where the free space already says so.
using SaveOutcome = absl::StatusOr<std::vector<v1::Checkpoint>>;

class CheckpointSaver final : public optim::UpdateListener {
 public:
  // Everything outlives the saver. `save_group`: all ranks, on CPU, for this saver alone. `buffer_bytes`: host memory
  // that a save may take on this rank (pinned where the store is on a GPU).
  CheckpointSaver(FileSystem& files, parallel::FlatStore& store, const comm::ParallelGroups& groups,
                  comm::CommPtr save_group, int64_t buffer_bytes, const Clock& clock);
  // Gives up a save that is under way.
  ~CheckpointSaver() override;
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // REQUIRES: none is under way. All ranks call it after the same step.
  void Begin(SaveRequest request);
  // Begun, and its outcome not yet taken.
  bool under_way() const { return outcome_.valid(); }
  // Take would not wait.
  bool finished() const;
  // Waits until the checkpoint is durable or cannot become so. REQUIRES: under_way(). CommError passes through.
  SaveOutcome Take() { return outcome_.get(); }

  void BeforeUpdate(int bucket) override { ring_.Protect(bucket); }

 private:
  struct Job {
    SaveRequest request;
    RankSlices slices;
    int64_t bytes_of_all = 0;  // of tensors, over all ranks
  };

  SaveOutcome Run(const Job& job);
  absl::StatusOr<int64_t> Write(const Job& job);

  FileSystem& files_;
  parallel::FlatStore& store_;
  const comm::ParallelGroups& groups_;
  const comm::CommPtr save_group_;
  const Clock& clock_;
  SnapshotRing ring_;
  std::future<SaveOutcome> outcome_;
};

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_SAVER_H_
