#include "engine/format/checkpoint_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"

namespace slipway::engine::format {
namespace {

constexpr std::string_view kTemporaryPrefix = ".saving-";
constexpr std::string_view kRemovingPrefix = ".removing-";

std::string RemovingDirectory(const std::string& root, CheckpointId id) {
  return JoinPath(root, StrCat(kRemovingPrefix, CheckpointName(id)));
}

absl::Status CheckFileSizes(FileSystem& file_system, const std::string& directory, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    const std::string path = JoinPath(directory, name);
    SLIPWAY_ASSIGN_OR_RETURN(const FileInfo info, file_system.Stat(path));
    if (info.is_directory || info.size != file.size) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " has ", info.size, " bytes, and the manifest says ", file.size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointName(CheckpointId id) { return absl::StrFormat("step-%08d-e%d", id.step, id.epoch); }

std::optional<CheckpointId> ParseCheckpointName(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  const size_t separator = name.find("-e");
  if (name.substr(0, kPrefix.size()) != kPrefix || separator == std::string_view::npos) return std::nullopt;
  CheckpointId id;
  if (!absl::SimpleAtoi(ToAbsl(name.substr(kPrefix.size(), separator - kPrefix.size())), &id.step) ||
      !absl::SimpleAtoi(ToAbsl(name.substr(separator + 2)), &id.epoch)) {
    return std::nullopt;
  }
  // Signs, spaces and missing zeros are no names of ours.
  if (id.step < 0 || id.epoch < 0 || CheckpointName(id) != name) return std::nullopt;
  return id;
}

absl::StatusOr<Manifest> ReadCheckpoint(FileSystem& file_system, const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFile);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path));
  SLIPWAY_ASSIGN_OR_RETURN(Manifest manifest, ManifestFromJson(text, path));
  const std::string expected = CheckpointName({manifest.step, manifest.epoch});
  if (BaseName(directory) != expected) {
    return absl::FailedPreconditionError(absl::StrCat(path, " belongs to ", expected, ", not to this directory"));
  }
  SLIPWAY_RETURN_IF_ERROR(CheckFileSizes(file_system, directory, manifest));
  return manifest;
}

bool IsValidCheckpoint(FileSystem& file_system, const std::string& directory) {
  return ReadCheckpoint(file_system, directory).ok();
}

absl::Status VerifyChecksums(FileSystem& file_system, const std::string& directory, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    const std::string path = JoinPath(directory, name);
    SLIPWAY_ASSIGN_OR_RETURN(const std::string checksum, FileChecksum(file_system, path));
    if (checksum != file.checksum) {
      return absl::DataLossError(
          absl::StrCat(path, " has checksum ", checksum, ", and the manifest says ", file.checksum));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointList> ListCheckpoints(FileSystem& file_system, const std::string& root,
                                               std::string_view job_id) {
  CheckpointList list;
  absl::StatusOr<std::vector<std::string>> names = file_system.List(root);
  if (absl::IsNotFound(names.status())) return list;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::optional<CheckpointId> id = ParseCheckpointName(name);
    if (!id.has_value()) continue;
    const std::string directory = JoinPath(root, name);
    absl::StatusOr<Manifest> manifest = ReadCheckpoint(file_system, directory);
    if (!manifest.ok()) {
      list.rejected.push_back({directory, manifest.status()});
    } else if (manifest->job_id != job_id) {
      list.foreign.push_back({directory, manifest->job_id});
    } else {
      list.complete.push_back({*id, directory, std::move(*manifest)});
    }
  }
  std::sort(list.complete.begin(), list.complete.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.id < b.id; });
  return list;
}

absl::Status CheckOwner(const CheckpointList& list, const std::string& root) {
  if (list.foreign.empty() || !list.complete.empty()) return absl::OkStatus();
  const ForeignCheckpoint& other = list.foreign.back();
  return absl::FailedPreconditionError(
      StrCat(root, " holds checkpoints of job ", other.job_id, " (", BaseName(other.directory),
             "); give this job a checkpoint.path of its own, or none. To start from that job's weights, set "
             "model.pretrained_checkpoint to ",
             other.directory));
}

const CheckpointEntry* NewestInLineage(const CheckpointList& list, const std::vector<LineageEntry>& lineage) {
  const auto found = std::find_if(list.complete.rbegin(), list.complete.rend(), [&](const CheckpointEntry& entry) {
    return InLineage(lineage, entry.id.epoch, entry.id.step);
  });
  return found == list.complete.rend() ? nullptr : &*found;
}

std::string TemporaryDirectory(const std::string& root, CheckpointId id) {
  return JoinPath(root, StrCat(kTemporaryPrefix, CheckpointName(id)));
}

absl::StatusOr<std::string> BeginCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id) {
  const std::string directory = TemporaryDirectory(root, id);
  SLIPWAY_RETURN_IF_ERROR(file_system.RemoveTree(directory));
  SLIPWAY_RETURN_IF_ERROR(file_system.MakeDirectories(directory));
  return directory;
}

absl::Status CommitCheckpoint(FileSystem& file_system, const std::string& root, const Manifest& manifest) {
  const CheckpointId id{manifest.step, manifest.epoch};
  const std::string temporary = TemporaryDirectory(root, id);
  const std::string final_directory = JoinPath(root, CheckpointName(id));
  SLIPWAY_RETURN_IF_ERROR(ValidateManifest(manifest));
  SLIPWAY_RETURN_IF_ERROR(CheckFileSizes(file_system, temporary, manifest));
  if (const absl::StatusOr<Manifest> there = ReadCheckpoint(file_system, final_directory); there.ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat(final_directory, " is a complete checkpoint already, of job ", there->job_id));
  }
  // Also syncs the directory, and with it the names of all files in it.
  SLIPWAY_RETURN_IF_ERROR(
      file_system.WriteFileAtomically(JoinPath(temporary, kManifestFile), ManifestToJson(manifest)));
  SLIPWAY_RETURN_IF_ERROR(file_system.RemoveTree(final_directory));
  SLIPWAY_RETURN_IF_ERROR(file_system.Rename(temporary, final_directory));
  return file_system.SyncDirectory(root);
}

absl::Status AbortCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id) {
  return file_system.RemoveTree(TemporaryDirectory(root, id));
}

absl::Status RemoveAbandoned(FileSystem& file_system, const std::string& root, int64_t epoch) {
  absl::StatusOr<std::vector<std::string>> names = file_system.List(root);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    for (const std::string_view prefix : {kTemporaryPrefix, kRemovingPrefix}) {
      if (!absl::StartsWith(name, ToAbsl(prefix))) continue;
      const std::optional<CheckpointId> id = ParseCheckpointName(std::string_view(name).substr(prefix.size()));
      if (!id.has_value() || id->epoch > epoch) continue;
      SLIPWAY_RETURN_IF_ERROR(file_system.RemoveTree(JoinPath(root, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpace(FileSystem& file_system, const std::string& root, int64_t needed) {
  SLIPWAY_ASSIGN_OR_RETURN(const int64_t free_bytes, file_system.FreeBytes(root));
  if (free_bytes >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(root, " has ", FormatBytes(free_bytes), " free (", free_bytes,
                                                   " bytes), and a checkpoint needs ", FormatBytes(needed), " (",
                                                   needed, " bytes)"));
}

std::vector<CheckpointId> ChooseForRemoval(const CheckpointList& list, const std::vector<LineageEntry>& lineage,
                                           const RetentionPolicy& policy) {
  std::vector<CheckpointId> chosen;
  if (policy.keep_last <= 0 || lineage.empty()) return chosen;
  int64_t kept = 0;
  for (auto entry = list.complete.rbegin(); entry != list.complete.rend(); ++entry) {
    const bool ours = InLineage(lineage, entry->id.epoch, entry->id.step);
    if (ours && kept < policy.keep_last) {
      ++kept;
    } else if (entry->id.epoch <= lineage.back().epoch && !policy.pinned.contains(entry->id) &&
               !policy.being_read.contains(entry->id)) {
      chosen.push_back(entry->id);
    }
  }
  // Without a good one of ours nothing goes: the strangers may be all there is.
  if (kept == 0) return {};
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

absl::Status RemoveCheckpoint(FileSystem& file_system, const std::string& root, CheckpointId id) {
  const std::string doomed = RemovingDirectory(root, id);
  SLIPWAY_RETURN_IF_ERROR(file_system.RemoveTree(doomed));
  SLIPWAY_RETURN_IF_ERROR(file_system.Rename(JoinPath(root, CheckpointName(id)), doomed));
  return file_system.RemoveTree(doomed);
}

}  // namespace slipway::engine::format
