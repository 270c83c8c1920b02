// What one rank adds to a checkpoint: its file, and which elements of which tensors lie where in it. Written beside the
// file while a save is under way; rank 0 makes the manifest out of all parts and removes them.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_
#define SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/format/manifest.h"
#include "engine/parallel/flat_store.h"

namespace slipway::engine::checkpoint {

struct RankPart {
  std::string file;  // empty: this rank has nothing to write
  format::ManifestFile contents;
  std::vector<format::ManifestTensor> tensors;  // shards of this rank alone
};

// Writes this rank's slices into `directory`, synced.
absl::StatusOr<RankPart> WriteRankFile(FileSystem& files, const std::string& directory, int rank,
                                       parallel::FlatStore& store);

absl::Status WritePart(FileSystem& files, const std::string& directory, int rank, const RankPart& part);
absl::StatusOr<RankPart> ReadPart(FileSystem& files, const std::string& directory, int rank);
std::string PartName(int rank);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_
