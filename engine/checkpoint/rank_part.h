// What one rank adds to a checkpoint: its file, and which elements of which tensors lie where in it. Written beside the
// file while a save is under way; rank 0 makes the manifest out of all parts and removes them.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_
#define SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/checkpoint/snapshot_ring.h"
#include "engine/format/manifest.h"
#include "engine/parallel/flat_store.h"

namespace slipway::engine::checkpoint {

struct RankPart {
  std::string file;  // empty: this rank has nothing to write
  format::ManifestFile contents;
  std::vector<format::ManifestTensor> tensors;  // shards of this rank alone
};

// What a rank has to write: slices of the store in ascending order of their buckets, and the elements of tensors that
// lie in them.
struct RankSlices {
  std::vector<std::string> names;  // in the file, which has them in this order
  std::vector<SnapshotSlice> slices;
  struct Range {
    size_t slice = 0;
    format::ManifestTensor tensor;  // its shard without file; the offset is that in the slice
  };
  std::vector<Range> ranges;
};
// Looks at the store, and copies nothing. Training thread.
RankSlices SlicesOf(parallel::FlatStore& store);

// Writes the snapshot of the slices, as `ring` gives it, into `directory`, synced. Cancelled when the ring was
// abandoned.
absl::StatusOr<RankPart> WriteRankFile(FileSystem& files, const std::string& directory, int rank,
                                       const RankSlices& slices, SnapshotRing& ring);

absl::Status WritePart(FileSystem& files, const std::string& directory, int rank, const RankPart& part);
absl::StatusOr<RankPart> ReadPart(FileSystem& files, const std::string& directory, int rank);
std::string PartName(int rank);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_RANK_PART_H_
