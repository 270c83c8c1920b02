// Tensors of a flat store from checkpoint directories and Hugging Face directories (engine/format holds the byte
// formats; checkpoint_saver.h writes). A load works out with the range planner which bytes of which files this rank's
// slices are, so any layout reads any other. Thread-safety: the training thread. CommError passes through as an
// exception.
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

// Weights and optimizer state of this rank's share; publishes the compute weights.
absl::StatusOr<RunState> LoadCheckpoint(FileSystem& files, const std::string& path, parallel::FlatStore& store);
// Weights alone, for pretrained_checkpoint and generation.
absl::Status LoadCheckpointWeights(FileSystem& files, const std::string& path, parallel::FlatStore& store);
// Weights of a Hugging Face directory; every parameter of the table must be there with its shape, tied ones must agree.
absl::Status LoadHfWeights(FileSystem& files, const std::string& directory, parallel::FlatStore& store);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_CHECKPOINT_IO_H_
