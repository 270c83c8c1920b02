#include "engine/checkpoint/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/timestamp.h"
#include "engine/checkpoint/lineage.h"
#include "engine/checkpoint/manifest_counters.h"
#include "engine/checkpoint/rank_part.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/manifest.h"
#include "engine/spec/layout.h"
#include "engine/spec/spec_writer.h"

namespace slipway::engine::checkpoint {
namespace {

// Bytes beside the tensors: headers, manifest, config.
constexpr int64_t kOverheadBytes = int64_t{8} << 20;
constexpr int64_t kBytesOfAParameter = 12;  // master weight and two moments, fp32

// OK where every rank is OK; else this rank's own error, or the name of the first rank that failed.
absl::Status Agree(const absl::Status& own, const char* what, comm::Communicator& group) {
  constexpr int64_t kNobody = std::numeric_limits<int32_t>::max();
  at::Tensor first_failed = at::full({1}, own.ok() ? kNobody : group.rank(), at::kLong);
  group.AllReduce(first_failed, comm::ReduceOp::kMin)->Wait();
  const int64_t rank = first_failed.item<int64_t>();
  if (rank == kNobody) return absl::OkStatus();
  if (!own.ok()) return own;
  return absl::AbortedError(StrCat(what, ": rank ", rank, " failed"));
}

// Of the whole model, as far as this rank can tell: every rank of the groups that hold it has about as much.
int64_t ParametersOf(const parallel::FlatStore& store, const comm::ParallelGroups& groups) {
  int64_t elements = 0;
  for (const parallel::LogicalShare& share : store.shares()) {
    const int ranks = share.spec->expert.has_value() ? groups.etp_ep->size() * groups.pp->size() : groups.model->size();
    elements += share.elements * ranks;
  }
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
  manifest.mesh = {
      {"tp", parallelism.tensor_model_parallel_size()}, {"cp", parallelism.context_parallel_size()},
      {"ep", parallelism.expert_model_parallel_size()}, {"etp", spec::ExpertTensorParallelSize(parallelism)},
      {"dp", parallelism.data_parallel_size()},         {"pp", parallelism.pipeline_model_parallel_size()}};
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

// Rank 0, before anybody writes: the directory, and room for what will be written. What saves that died left behind
// goes.
absl::Status Prepare(FileSystem& files, const SaveRequest& request, format::CheckpointId id, int64_t tensor_bytes) {
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(request.root));
  SLIPWAY_ASSIGN_OR_RETURN(const format::CheckpointList list,
                           format::ListCheckpoints(files, request.root, request.job_id));
  SLIPWAY_RETURN_IF_ERROR(format::CheckOwner(list, request.root));
  SLIPWAY_RETURN_IF_ERROR(format::RemoveAbandoned(files, request.root, request.epoch));
  SLIPWAY_RETURN_IF_ERROR(format::CheckSpace(files, request.root, tensor_bytes + kOverheadBytes));
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

format::CheckpointId IdOf(const SaveRequest& request) { return {request.state.step, request.epoch}; }

}  // namespace

CheckpointSaver::CheckpointSaver(FileSystem& files, parallel::FlatStore& store, const comm::ParallelGroups& groups,
                                 comm::CommPtr save_group, int64_t buffer_bytes, const Clock& clock)
    : files_(files),
      store_(store),
      groups_(groups),
      save_group_(std::move(save_group)),
      clock_(clock),
      ring_(buffer_bytes, store.options().device) {}

CheckpointSaver::~CheckpointSaver() {
  ring_.Abandon();
  if (outcome_.valid()) outcome_.wait();
}

void CheckpointSaver::Begin(SaveRequest request) {
  Job job;
  job.request = std::move(request);
  job.slices = SlicesOf(store_);
  job.bytes_of_all = ParametersOf(store_, groups_) * kBytesOfAParameter;
  ring_.Begin(job.slices.slices);
  outcome_ = std::async(std::launch::async, [this, job = std::move(job)] {
    // However it ends: nobody reads on, so the optimizer need not wait.
    const std::unique_ptr<SnapshotRing, void (*)(SnapshotRing*)> end(&ring_,
                                                                     [](SnapshotRing* ring) { ring->Abandon(); });
    return Run(job);
  });
}

bool CheckpointSaver::finished() const {
  return outcome_.valid() && outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

SaveOutcome CheckpointSaver::Run(const Job& job) {
  const SaveRequest& request = job.request;
  const bool leads = save_group_->rank() == 0;
  const absl::StatusOr<int64_t> bytes = Write(job);
  if (!bytes.ok()) {
    const absl::Status removed =
        leads ? format::AbortCheckpoint(files_, request.root, IdOf(request)) : absl::OkStatus();
    return removed.ok() ? bytes.status() : Annotate(bytes.status(), StrCat("(and ", removed.message(), ")"));
  }
  std::vector<v1::Checkpoint> changes = {Describe(request, IdOf(request), v1::CHECKPOINT_STATE_COMMITTED)};
  changes[0].set_size_bytes(*bytes);
  changes[0].set_request_number(request.request_number);
  *changes[0].mutable_commit_time() = ToTimestamp(clock_.WallNow());
  if (leads) {
    // The new one is durable whatever becomes of the old ones.
    if (const absl::Status status = RemoveOld(files_, request, &changes); !status.ok()) {
      spdlog::warn("old checkpoints stay: {}", ToStd(status.message()));
    }
  }
  return changes;
}

// The size of the committed checkpoint, on rank 0.
absl::StatusOr<int64_t> CheckpointSaver::Write(const Job& job) {
  const int rank = save_group_->rank();
  const SaveRequest& request = job.request;
  const std::string temporary = format::TemporaryDirectory(request.root, IdOf(request));
  absl::Status prepared;
  if (rank == 0) prepared = Prepare(files_, request, IdOf(request), job.bytes_of_all);
  SLIPWAY_RETURN_IF_ERROR(Agree(prepared, "preparing a checkpoint", *save_group_));

  const absl::StatusOr<RankPart> part = WriteRankFile(files_, temporary, rank, job.slices, ring_);
  // Nobody reads on, whether it is written or has failed: this rank's optimizer need not wait for the others' writers.
  ring_.Abandon();
  const absl::Status written = part.ok() ? WritePart(files_, temporary, rank, *part) : part.status();
  SLIPWAY_RETURN_IF_ERROR(Agree(written, "writing a checkpoint", *save_group_));

  absl::StatusOr<int64_t> bytes = int64_t{0};
  if (rank == 0) bytes = Commit(files_, request, temporary, save_group_->size());
  SLIPWAY_RETURN_IF_ERROR(Agree(bytes.status(), "committing a checkpoint", *save_group_));
  return bytes;
}

}  // namespace slipway::engine::checkpoint
