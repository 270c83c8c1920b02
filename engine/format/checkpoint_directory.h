// Checkpoints as directories: names, the commit protocol, listing, choosing and removing. The directory of a job is its
// checkpoint root; a checkpoint is `<root>/step-<8 digits>-e<epoch>/` with `manifest.json` and the files that it names.
// Functions are thread-safe. At most one attempt may write and remove under a root at a time (the coordinator fences).
#ifndef SLIPWAY_ENGINE_FORMAT_CHECKPOINT_DIRECTORY_H_
#define SLIPWAY_ENGINE_FORMAT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/format/manifest.h"

namespace slipway::engine::format {

struct CheckpointId {
  int64_t step = 0;
  int64_t epoch = 0;
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};

// "step-00000120-e3"; more digits when the step needs them.
std::string CheckpointName(CheckpointId id);
// Nothing for a name that CheckpointName cannot give.
std::optional<CheckpointId> ParseCheckpointName(std::string_view name);

// The manifest of a complete checkpoint. Checks the manifest, that it belongs to the directory's name, and that every
// file is there with its size; not the files' checksums. NotFound or FailedPrecondition when the directory is
// incomplete.
absl::StatusOr<Manifest> ReadCheckpoint(FileSystem& file_system, const std::string& directory);
bool IsValidCheckpoint(FileSystem& file_system, const std::string& directory);
// DataLoss naming the first file whose contents are not what the manifest says. Reads everything.
absl::Status VerifyChecksums(FileSystem& file_system, const std::string& directory, const Manifest& manifest);

struct CheckpointEntry {
  CheckpointId id;
  std::string directory;
  Manifest manifest;
};
struct ForeignCheckpoint {
  std::string directory;
  std::string job_id;  // whose it is
};
struct RejectedDirectory {
  std::string directory;
  absl::Status reason;
};
struct CheckpointList {
  std::vector<CheckpointEntry> complete;  // the job's own, by step, then epoch
  // Complete checkpoints of other jobs: never resumed from, counted or removed.
  std::vector<ForeignCheckpoint> foreign;
  // Directories named like checkpoints that are none. To be told, not to be repaired by hand.
  std::vector<RejectedDirectory> rejected;
};
// What a job finds under its root. A root that does not exist has no checkpoints. Temporary directories and names that
// are none of ours are not mentioned.
absl::StatusOr<CheckpointList> ListCheckpoints(FileSystem& file_system, const std::string& root,
                                               std::string_view job_id);

// A root belongs to one job. FailedPrecondition naming root, owner and what to do when only another one has checkpoints
// there. (Copies of strangers beside the job's own are in nobody's way.)
absl::Status CheckOwner(const CheckpointList& list, const std::string& root);

// The newest checkpoint of an attempt's own history, or nullptr. What lies outside the lineage was written by an
// attempt that has lost its job, and is ignored.
const CheckpointEntry* NewestInLineage(const CheckpointList& list, const std::vector<LineageEntry>& lineage);

// The temporary directory of one save. Nothing under it is ever taken for a checkpoint. Several processes write into
// it; one begins it and one commits it.
std::string TemporaryDirectory(const std::string& root, CheckpointId id);
// Makes it, empty, also when an earlier try left one.
absl::StatusOr<std::string> BeginCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id);
// Every file must be written and synced already. Checks the manifest and the files' sizes, writes the manifest last,
// syncs, renames: when this returns OK the checkpoint survives a power loss. When it fails there is none, or, if only
// the last sync failed, a complete one that a power loss may take away. An invalid directory of the same name is
// replaced; a valid one gives AlreadyExists, naming its job.
absl::Status CommitCheckpoint(FileSystem& file_system, const std::string& root, const Manifest& manifest);
// Removes the temporary directory of a save that failed.
absl::Status AbortCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id);
// Removes what crashed saves and removals of attempts up to `epoch` left. Only when none of them is saving under this
// root; what later attempts do there is not touched: the caller may have lost its job without knowing.
absl::Status RemoveAbandoned(FileSystem& file_system, const std::string& root, int64_t epoch);
// ResourceExhausted, with both numbers and the path, when fewer bytes are free than `needed`.
absl::Status CheckSpace(FileSystem& file_system, const std::string& root, int64_t needed);

struct RetentionPolicy {
  int64_t keep_last = 0;              // newest checkpoints to keep; 0 keeps all
  std::set<CheckpointId> pinned;      // somebody asked to keep them
  std::set<CheckpointId> being_read;  // an export or another job reads them now
};
// Those of the job to remove, oldest first: never the newest in the lineage (the last good one), never pinned ones or
// ones being read, and never those of attempts later than the lineage's: whoever asks has lost the job to them. Other
// checkpoints outside the lineage do not count among the kept and are removed as well; those of other jobs stay.
std::vector<CheckpointId> ChooseForRemoval(const CheckpointList& list, const std::vector<LineageEntry>& lineage,
                                           const RetentionPolicy& policy);
// Renames first, so that a half-removed directory is no checkpoint.
absl::Status RemoveCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_CHECKPOINT_DIRECTORY_H_
