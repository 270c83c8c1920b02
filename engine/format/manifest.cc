#include "engine/format/manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::format {
namespace {

constexpr std::array<std::pair<StateKind, std::string_view>, 4> kKinds = {{{StateKind::kWeight, "weight"},
                                                                           {StateKind::kMaster, "master"},
                                                                           {StateKind::kExpAvg, "exp_avg"},
                                                                           {StateKind::kExpAvgSq, "exp_avg_sq"}}};

std::string TensorText(const ManifestTensor& tensor) {
  return StrCat("tensor \"", tensor.name, "\" (", StateKindName(tensor.kind), ")");
}

absl::Status CheckShards(const Manifest& manifest, const ManifestTensor& tensor) {
  std::vector<Piece> pieces;
  for (const ManifestShard& shard : tensor.shards) {
    SLIPWAY_RETURN_IF_ERROR(CheckPiece(tensor.shape, shard.piece));
    const auto file = manifest.files.find(shard.file);
    if (file == manifest.files.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a shard is in \"", shard.file, "\", which is not in the list of files"));
    }
    // No product can overflow: the piece lies in a tensor of at most 2^62 elements, checked before in bytes.
    const int64_t bytes = shard.piece.Elements() * DTypeSize(tensor.dtype);
    if (shard.byte_offset < 0 || shard.byte_offset > file->second.size ||
        bytes > file->second.size - shard.byte_offset) {
      return absl::InvalidArgumentError(absl::StrCat("a shard of ", bytes, " bytes at ", shard.byte_offset,
                                                     " is not inside ", shard.file, ", which has ", file->second.size));
    }
    pieces.push_back(shard.piece);
  }
  return PlanCopies(tensor.shape, pieces, WholeTensor(tensor.shape)).status();
}

absl::Status CheckTensor(const Manifest& manifest, const ManifestTensor& tensor) {
  SLIPWAY_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
  if (elements > std::numeric_limits<int64_t>::max() / DTypeSize(tensor.dtype)) {
    return absl::InvalidArgumentError("its shape is too large");
  }
  if (tensor.alias_of.empty()) return CheckShards(manifest, tensor);
  if (!tensor.shards.empty()) return absl::InvalidArgumentError("an alias cannot have shards of its own");
  const ManifestTensor* target = manifest.Find(tensor.alias_of, tensor.kind);
  if (target == nullptr || !target->alias_of.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is an alias of \"", tensor.alias_of, "\", which holds no elements"));
  }
  if (target->shape != tensor.shape || target->dtype != tensor.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is an alias of \"", tensor.alias_of, "\", which has another shape or type"));
  }
  return absl::OkStatus();
}

absl::Status CheckLineage(const Manifest& manifest) {
  std::set<int64_t> epochs;
  for (const LineageEntry& entry : manifest.lineage) {
    if (!epochs.insert(entry.epoch).second) {
      return absl::InvalidArgumentError(absl::StrCat("lineage: epoch ", entry.epoch, " is given twice"));
    }
    if (entry.forked_from.has_value() && entry.forked_from->epoch >= entry.epoch) {
      return absl::InvalidArgumentError(
          absl::StrCat("lineage: epoch ", entry.epoch, " cannot continue from epoch ", entry.forked_from->epoch));
    }
  }
  if (manifest.lineage.empty() || manifest.lineage.back().epoch != manifest.epoch) {
    return absl::InvalidArgumentError(absl::StrCat("lineage: it must end with the manifest's epoch, ", manifest.epoch));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view StateKindName(StateKind kind) { return kKinds[static_cast<size_t>(kind)].second; }

std::optional<StateKind> StateKindFromName(std::string_view name) {
  for (const auto& [kind, kind_name] : kKinds) {
    if (kind_name == name) return kind;
  }
  return std::nullopt;
}

int64_t Manifest::TotalBytes() const {
  int64_t bytes = 0;
  for (const auto& [name, file] : files) bytes += file.size;
  return bytes;
}

const ManifestTensor* Manifest::Find(std::string_view name, StateKind kind) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const ManifestTensor& t) { return t.kind == kind && t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

absl::Status ValidateManifest(const Manifest& manifest) {
  const auto negative = [](std::string_view field, int64_t value) {
    return absl::InvalidArgumentError(StrCat(field, " is ", value, " and must not be negative"));
  };
  if (manifest.job_id.empty()) return absl::InvalidArgumentError("job_id is empty");
  if (manifest.step < 0) return negative("step", manifest.step);
  if (manifest.epoch < 0) return negative("epoch", manifest.epoch);
  if (manifest.consumed_samples < 0) return negative("consumed_samples", manifest.consumed_samples);
  if (manifest.consumed_tokens < 0) return negative("consumed_tokens", manifest.consumed_tokens);
  for (const auto& [axis, size] : manifest.mesh) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat("mesh: axis ", axis, " has size ", size));
  }
  SLIPWAY_RETURN_IF_ERROR(CheckLineage(manifest));
  for (const auto& [name, file] : manifest.files) {
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name == kManifestFile) {
      return absl::InvalidArgumentError(absl::StrCat("files: \"", name, "\" is no name for a file of a checkpoint"));
    }
    if (file.size < 0 || !IsChecksum(file.checksum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("files: \"", name, "\" has a bad size (", file.size, ") or checksum (\"", file.checksum, "\")"));
    }
  }
  std::set<std::pair<std::string_view, StateKind>> names;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.name.empty() || !names.emplace(tensor.name, tensor.kind).second) {
      return absl::InvalidArgumentError(TensorText(tensor) + " has no name or is there twice");
    }
    if (absl::Status status = CheckTensor(manifest, tensor); !status.ok()) {
      return absl::InvalidArgumentError(StrCat(TensorText(tensor), ": ", ToStd(status.message())));
    }
  }
  return absl::OkStatus();
}

bool InLineage(const std::vector<LineageEntry>& lineage, int64_t epoch, int64_t step) {
  if (lineage.empty()) return false;
  const LineageEntry* entry = &lineage.back();
  int64_t limit = std::numeric_limits<int64_t>::max();
  // Forks lead to smaller epochs only, so this ends.
  while (entry->epoch != epoch) {
    if (!entry->forked_from.has_value()) return false;
    const LineageEntry::Fork fork = *entry->forked_from;
    const auto next = std::find_if(lineage.begin(), lineage.end(),
                                   [&](const LineageEntry& other) { return other.epoch == fork.epoch; });
    if (next == lineage.end() || next->epoch >= entry->epoch) return false;
    limit = fork.step;
    entry = &*next;
  }
  return step <= limit;
}

}  // namespace slipway::engine::format
