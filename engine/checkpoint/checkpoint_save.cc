#include <ATen/ATen.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/lineage.h"
#include "engine/checkpoint/manifest_counters.h"
#include "engine/checkpoint/rank_part.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/manifest.h"
#include "engine/spec/spec_writer.h"

namespace slipway::engine::checkpoint {
namespace {

// Bytes beside the tensors: headers, manifest, config.
constexpr int64_t kOverheadBytes = int64_t{8} << 20;

// OK where every rank is OK; else this rank's own error, or the name of the first rank that failed.
absl::Status Agree(const absl::Status& own, const char* what, const comm::ParallelGroups& groups, at::Device device) {
  constexpr int64_t kNobody = std::numeric_limits<int32_t>::max();
  at::Tensor first_failed =
      at::full({1}, own.ok() ? kNobody : groups.world->rank(), at::TensorOptions().dtype(at::kLong).device(device));
  groups.world->AllReduce(first_failed, comm::ReduceOp::kMin)->Wait();
  const int64_t rank = first_failed.item<int64_t>();
  if (rank == kNobody) return absl::OkStatus();
  if (!own.ok()) return own;
  return absl::AbortedError(StrCat(what, ": rank ", rank, " failed"));
}

int64_t ParametersOf(const parallel::FlatStore& store) {
  int64_t elements = 0;
  for (const parallel::LogicalShare& share : store.shares()) elements += share.elements;
  return elements;
}

absl::StatusOr<format::Manifest> MakeManifest(FileSystem& files, const SaveRequest& request,
                                              const std::string& directory, int world) {
  format::Manifest manifest;
  manifest.job_id = request.job_id;
  manifest.epoch = request.epoch;
  StateToManifest(request.state, manifest);
  manifest.resolved_spec = spec::SpecToJson(request.spec);
  const v1::ParallelismSpec& parallelism = request.spec.parallelism();
  manifest.mesh = {{"tp", parallelism.tensor_model_parallel_size()},
                   {"cp", parallelism.context_parallel_size()},
                   {"dp", parallelism.data_parallel_size()},
                   {"pp", parallelism.pipeline_model_parallel_size()}};
  manifest.lineage = ToFormat(request.lineage);
  std::map<std::pair<std::string, format::StateKind>, format::ManifestTensor> tensors;
  for (int rank = 0; rank < world; ++rank) {
    SLIPWAY_ASSIGN_OR_RETURN(RankPart part, ReadPart(files, directory, rank));
    SLIPWAY_RETURN_IF_ERROR(files.RemoveFile(JoinPath(directory, PartName(rank))));
    if (!part.file.empty()) manifest.files[part.file] = part.contents;
    for (format::ManifestTensor& tensor : part.tensors) {
      const auto [at, added] = tensors.try_emplace({tensor.name, tensor.kind}, tensor);
      if (!added) at->second.shards.push_back(std::move(tensor.shards.front()));
    }
  }
  for (auto& [key, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  return manifest;
}

// Rank 0, before anybody writes: the directory, and room for what will be written.
absl::Status Begin(FileSystem& files, const SaveRequest& request, format::CheckpointId id, int64_t parameters) {
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(request.root));
  SLIPWAY_ASSIGN_OR_RETURN(const format::CheckpointList list,
                           format::ListCheckpoints(files, request.root, request.job_id));
  SLIPWAY_RETURN_IF_ERROR(format::CheckOwner(list, request.root));
  SLIPWAY_RETURN_IF_ERROR(
      format::CheckSpace(files, request.root, parameters * 3 * DTypeSize(DType::kFloat32) + kOverheadBytes));
  return format::BeginCheckpoint(files, request.root, id).status();
}

// Rank 0, after everybody has written. Returns the checkpoint's size.
absl::StatusOr<int64_t> Commit(FileSystem& files, const SaveRequest& request, const std::string& temporary, int world) {
  SLIPWAY_ASSIGN_OR_RETURN(format::Manifest manifest, MakeManifest(files, request, temporary, world));
  if (!request.config_json.empty()) {
    SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(JoinPath(temporary, kConfigFile), request.config_json));
    manifest.files[kConfigFile] = {static_cast<int64_t>(request.config_json.size()), ChecksumOf(request.config_json)};
  }
  SLIPWAY_RETURN_IF_ERROR(format::CommitCheckpoint(files, request.root, manifest));
  return manifest.TotalBytes();
}

v1::Checkpoint Describe(const SaveRequest& request, format::CheckpointId id, v1::CheckpointState state) {
  v1::Checkpoint checkpoint;
  checkpoint.set_job_id(request.job_id);
  checkpoint.set_step(id.step);
  checkpoint.set_epoch(id.epoch);
  checkpoint.set_path(JoinPath(request.root, format::CheckpointName(id)));
  checkpoint.set_state(state);
  return checkpoint;
}

// The newest one that was not saved in the middle of skipped steps: what an operator goes back to when a run diverges.
std::optional<format::CheckpointId> NewestWithoutSkips(const format::CheckpointList& list,
                                                       const std::vector<format::LineageEntry>& lineage) {
  for (auto entry = list.complete.rbegin(); entry != list.complete.rend(); ++entry) {
    if (!format::InLineage(lineage, entry->id.epoch, entry->id.step)) continue;
    const absl::StatusOr<RunState> state = StateFromManifest(entry->manifest);
    if (state.ok() && state->consecutive_skipped == 0) return entry->id;
  }
  return std::nullopt;
}

// Appends those that it removed.
absl::Status RemoveOld(FileSystem& files, const SaveRequest& request, std::vector<v1::Checkpoint>* removed) {
  if (request.keep_last <= 0) return absl::OkStatus();
  SLIPWAY_ASSIGN_OR_RETURN(const format::CheckpointList list,
                           format::ListCheckpoints(files, request.root, request.job_id));
  format::RetentionPolicy policy;
  policy.keep_last = request.keep_last;
  const std::vector<format::LineageEntry> lineage = ToFormat(request.lineage);
  if (const std::optional<format::CheckpointId> good = NewestWithoutSkips(list, lineage)) policy.pinned.insert(*good);
  for (const format::CheckpointId& id : format::ChooseForRemoval(list, lineage, policy)) {
    SLIPWAY_RETURN_IF_ERROR(format::RemoveCheckpoint(files, request.root, id));
    removed->push_back(Describe(request, id, v1::CHECKPOINT_STATE_DELETED));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<v1::Checkpoint>> SaveCheckpoint(FileSystem& files, const SaveRequest& request,
                                                           parallel::FlatStore& store,
                                                           const comm::ParallelGroups& groups) {
  const int rank = groups.world->rank();
  const at::Device device = store.options().device;
  const format::CheckpointId id{request.state.step, request.epoch};
  const std::string temporary = format::TemporaryDirectory(request.root, id);
  const auto abandon = [&](absl::Status status) {
    if (rank != 0) return status;
    const absl::Status removed = format::AbortCheckpoint(files, request.root, id);
    return removed.ok() ? status : Annotate(status, StrCat("(and ", removed.message(), ")"));
  };

  const absl::Status begun =
      rank == 0 ? Begin(files, request, id, ParametersOf(store) * groups.model->size()) : absl::OkStatus();
  if (absl::Status agreed = Agree(begun, "preparing a checkpoint", groups, device); !agreed.ok())
    return abandon(agreed);

  // Without a sharded optimizer all data-parallel ranks hold the same: the first one writes.
  absl::StatusOr<RankPart> part = RankPart();
  if (store.options().shard_optimizer || groups.dp_cp->rank() == 0) part = WriteRankFile(files, temporary, rank, store);
  const absl::Status written = part.ok() ? WritePart(files, temporary, rank, *part) : part.status();
  if (absl::Status agreed = Agree(written, "writing a checkpoint", groups, device); !agreed.ok())
    return abandon(agreed);

  absl::StatusOr<int64_t> bytes = int64_t{0};
  if (rank == 0) bytes = Commit(files, request, temporary, groups.world->size());
  if (absl::Status agreed = Agree(bytes.status(), "committing a checkpoint", groups, device); !agreed.ok())
    return abandon(agreed);
  std::vector<v1::Checkpoint> changes = {Describe(request, id, v1::CHECKPOINT_STATE_COMMITTED)};
  changes[0].set_size_bytes(*bytes);
  changes[0].set_request_number(request.request_number);
  if (rank == 0) {
    // The new one is durable whatever becomes of the old ones.
    if (const absl::Status status = RemoveOld(files, request, &changes); !status.ok()) {
      spdlog::warn("old checkpoints stay: {}", ToStd(status.message()));
    }
  }
  return changes;
}

}  // namespace slipway::engine::checkpoint
