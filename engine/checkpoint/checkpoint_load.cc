#include <ATen/ATen.h>

#include <map>
#include <memory>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/lineage.h"
#include "engine/checkpoint/manifest_counters.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/checkpoint/tensor_fill.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/manifest.h"

namespace slipway::engine::checkpoint {
namespace {

using format::Manifest;
using format::StateKind;

// The files of one checkpoint, opened when first read.
class CheckpointReader {
 public:
  CheckpointReader(FileSystem& files, std::string directory, Manifest manifest)
      : files_(files), directory_(std::move(directory)), manifest_(std::move(manifest)) {}

  static absl::StatusOr<CheckpointReader> Open(FileSystem& files, const std::string& directory) {
    SLIPWAY_ASSIGN_OR_RETURN(Manifest manifest, format::ReadCheckpoint(files, directory));
    return CheckpointReader(files, directory, std::move(manifest));
  }

  const Manifest& manifest() const { return manifest_; }

  // Fills `out` with the part of parameter `spec` that `range` describes, of that kind.
  absl::Status Fill(const parallel::OwnedRange& range, StateKind kind, at::Tensor out) {
    const arch::ParamSpec& spec = *range.share->spec;
    SLIPWAY_ASSIGN_OR_RETURN(const format::ManifestTensor* tensor, TensorOf(manifest_, directory_, spec, kind));
    std::vector<StoredPiece> stored;
    for (const format::ManifestShard& shard : tensor->shards) {
      SLIPWAY_ASSIGN_OR_RETURN(const RandomAccessFile* file, File(shard.file));
      stored.push_back(
          {shard.piece, tensor->dtype, [file, start = shard.byte_offset](int64_t offset, absl::Span<std::byte> bytes) {
             return file->Read(start + offset, bytes);
           }});
    }
    const format::Piece target{{range.share->box.start, range.share->box.extent}, range.begin, range.end};
    return Annotate(FillTensor(spec.name, spec.shape, stored, target, std::move(out)), directory_);
  }

 private:
  absl::StatusOr<const RandomAccessFile*> File(const std::string& name) {
    std::unique_ptr<RandomAccessFile>& file = open_[name];
    if (file == nullptr) {
      SLIPWAY_ASSIGN_OR_RETURN(file, files_.OpenForRead(JoinPath(directory_, name)));
    }
    return file.get();
  }

  FileSystem& files_;
  std::string directory_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<RandomAccessFile>> open_;
};

using SliceOf = at::Tensor (*)(const parallel::Bucket& bucket);  // undefined: the bucket has none

absl::Status FillKind(CheckpointReader& reader, StateKind kind, SliceOf slice_of, parallel::FlatStore& store) {
  for (const parallel::OwnedRange& range : store.owned_ranges()) {
    const at::Tensor slice = slice_of(store.buckets()[range.share->bucket]);
    if (!slice.defined()) continue;
    SLIPWAY_RETURN_IF_ERROR(reader.Fill(range, kind, slice.narrow(0, range.offset, range.end - range.begin)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunState> LoadCheckpoint(FileSystem& files, const std::string& path, parallel::FlatStore& store) {
  SLIPWAY_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(files, path));
  SLIPWAY_RETURN_IF_ERROR(FillKind(
      reader, StateKind::kMaster, [](const parallel::Bucket& b) { return b.master; }, store));
  SLIPWAY_RETURN_IF_ERROR(FillKind(
      reader, StateKind::kExpAvg, [](const parallel::Bucket& b) { return b.exp_avg; }, store));
  SLIPWAY_RETURN_IF_ERROR(FillKind(
      reader, StateKind::kExpAvgSq, [](const parallel::Bucket& b) { return b.exp_avg_sq; }, store));
  store.PublishWeights();
  return StateFromManifest(reader.manifest());
}

absl::Status LoadCheckpointWeights(FileSystem& files, const std::string& path, parallel::FlatStore& store) {
  SLIPWAY_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(files, path));
  SLIPWAY_RETURN_IF_ERROR(FillKind(
      reader, StateKind::kWeight, [](const parallel::Bucket& b) { return b.loaded_slice(); }, store));
  store.PublishWeights();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(FileSystem& files, const std::string& root,
                                                           const std::string& job_id,
                                                           const std::vector<v1::LineageEntry>& lineage,
                                                           std::vector<std::string>* notes) {
  SLIPWAY_ASSIGN_OR_RETURN(const format::CheckpointList list, format::ListCheckpoints(files, root, job_id));
  SLIPWAY_RETURN_IF_ERROR(format::CheckOwner(list, root));
  for (const format::RejectedDirectory& rejected : list.rejected) {
    notes->push_back(
        StrCat(rejected.directory, " is not a complete checkpoint and is passed over: ", rejected.reason.message()));
  }
  const format::CheckpointEntry* newest = format::NewestInLineage(list, ToFormat(lineage));
  if (newest == nullptr) return std::optional<ResumePoint>();
  SLIPWAY_ASSIGN_OR_RETURN(const FileInfo info, files.Stat(JoinPath(newest->directory, format::kManifestFile)));
  return std::optional<ResumePoint>(
      {newest->id.epoch, newest->id.step, newest->directory, newest->manifest.TotalBytes(), info.modified});
}

}  // namespace slipway::engine::checkpoint
