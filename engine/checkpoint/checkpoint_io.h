// Tensors of a flat store ↔ checkpoint directories and Hugging Face directories (engine/format holds the byte formats).
//
// A save writes each rank's slices as they lie, one safetensors file a rank, into a temporary directory; rank 0 writes
// the manifest last and renames. A load works out with the range planner which bytes of which files this rank's slices
// are, so any layout reads any other. Thread-safety: the training thread. CommError passes through as an exception.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_IO_H_
#define SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_IO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_system.h"
#include "engine/checkpoint/run_state.h"
#include "engine/comm/parallel_groups.h"
#include "engine/parallel/flat_store.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::checkpoint {

// A step that an attempt may go on from.
struct ResumePoint {
  int64_t epoch = 0;
  int64_t step = 0;
  std::string path;
  int64_t size_bytes = 0;
  absl::Time commit_time;
};

// The job's newest valid checkpoint in `root` that lies in the lineage; nothing when there is none. Directories without
// a valid manifest, of another lineage, or with missing or short files are passed over; `notes` says which and why.
// FailedPrecondition when the root is another job's (format::CheckOwner).
absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(FileSystem& files, const std::string& root,
                                                           const std::string& job_id,
                                                           const std::vector<v1::LineageEntry>& lineage,
                                                           std::vector<std::string>* notes);

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

// All ranks call it alike; all return alike: an error on one rank (a full disk) is an error on all, and nothing but the
// temporary directory, which is removed, was touched. Returns what changed, in order: the committed checkpoint first
// (with its size on rank 0), then, on rank 0, those that retention deleted. Blocks until the checkpoint is durable.
// ResourceExhausted when the disk is too full, before anything is written where the free space already says so.
absl::StatusOr<std::vector<v1::Checkpoint>> SaveCheckpoint(FileSystem& files, const SaveRequest& request,
                                                           parallel::FlatStore& store,
                                                           const comm::ParallelGroups& groups);

// Weights and optimizer state of this rank's share; publishes the compute weights.
absl::StatusOr<RunState> LoadCheckpoint(FileSystem& files, const std::string& path, parallel::FlatStore& store);
// Weights alone, for pretrained_checkpoint and generation.
absl::Status LoadCheckpointWeights(FileSystem& files, const std::string& path, parallel::FlatStore& store);
// Weights of a Hugging Face directory; every parameter of the table must be there with its shape, tied ones must agree.
absl::Status LoadHfWeights(FileSystem& files, const std::string& directory, parallel::FlatStore& store);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_IO_H_
