#include "engine/checkpoint/rank_part.h"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/sharding.h"
#include "engine/format/safetensors.h"

namespace slipway::engine::checkpoint {
namespace {

using format::StateKind;
using nlohmann::json;

struct StoredKind {
  StateKind kind;
  at::Tensor parallel::Bucket::*slice;
};
// The weights follow from the master weights. In the order of their names.
constexpr std::array<StoredKind, 3> kStored = {{{StateKind::kExpAvg, &parallel::Bucket::exp_avg},
                                                {StateKind::kExpAvgSq, &parallel::Bucket::exp_avg_sq},
                                                {StateKind::kMaster, &parallel::Bucket::master}}};

// Names sort as the slices are read: the file's order is that of its names.
std::string SliceName(int bucket, StateKind kind) {
  return absl::StrFormat("bucket%05d.%s", bucket, ToAbsl(format::StateKindName(kind)));
}

}  // namespace

std::string PartName(int rank) { return absl::StrFormat("rank-%05d.part.json", rank); }

RankSlices SlicesOf(parallel::FlatStore& store) {
  RankSlices result;
  std::map<std::pair<int, StateKind>, size_t> slice_of;
  for (int b = 0; b < static_cast<int>(store.buckets().size()); ++b) {
    // Without a sharded optimizer all ranks that sum a bucket's gradients hold the same: the first one writes.
    if (!ShardsOptimizer(store.options().sharding) && store.buckets()[b].group_rank != 0) continue;
    for (const StoredKind& stored : kStored) {
      const at::Tensor& slice = store.buckets()[b].*stored.slice;
      if (!slice.defined() || slice.numel() == 0) continue;
      slice_of[{b, stored.kind}] = result.slices.size();
      result.names.push_back(SliceName(b, stored.kind));
      result.slices.push_back({b, slice});
    }
  }
  for (const parallel::OwnedRange& range : store.owned_ranges()) {
    if (!range.share->primary) continue;
    for (const StoredKind& stored : kStored) {
      const auto found = slice_of.find({range.share->bucket, stored.kind});
      if (found == slice_of.end()) continue;
      format::ManifestTensor tensor;
      tensor.name = range.share->spec->name;
      tensor.kind = stored.kind;
      tensor.dtype = DType::kFloat32;
      tensor.shape = range.share->spec->shape;
      tensor.shards.push_back({"",
                               range.offset * DTypeSize(DType::kFloat32),
                               {{range.share->box.start, range.share->box.extent}, range.begin, range.end}});
      result.ranges.push_back({found->second, std::move(tensor)});
    }
  }
  return result;
}

absl::StatusOr<RankPart> WriteRankFile(FileSystem& files, const std::string& directory, int rank,
                                       const RankSlices& slices, SnapshotRing& ring) {
  RankPart part;
  if (slices.slices.empty()) return part;
  part.file = absl::StrFormat("rank-%05d.safetensors", rank);
  std::vector<format::TensorInfo> infos;
  int64_t missing = 0;
  for (size_t i = 0; i < slices.slices.size(); ++i) {
    const at::Tensor& slice = slices.slices[i].tensor;
    infos.push_back({slices.names[i], DType::kFloat32, {slice.numel()}});
    missing += static_cast<int64_t>(slice.nbytes());
  }
  SLIPWAY_ASSIGN_OR_RETURN(
      format::SafetensorsWriter writer,
      format::SafetensorsWriter::Create(files, JoinPath(directory, part.file), std::move(infos), {}));
  while (const std::optional<std::string_view> bytes = ring.Next()) {
    SLIPWAY_RETURN_IF_ERROR(writer.Append(*bytes));
    missing -= static_cast<int64_t>(bytes->size());
  }
  if (missing > 0) return absl::CancelledError("the checkpoint was given up");
  SLIPWAY_RETURN_IF_ERROR(writer.Finish());
  part.contents = {writer.file_size(), writer.checksum()};
  for (const RankSlices::Range& range : slices.ranges) {
    const format::StoredTensor& stored = writer.layout()[range.slice];
    part.tensors.push_back(range.tensor);
    part.tensors.back().shards.front().file = part.file;
    part.tensors.back().shards.front().byte_offset += stored.offset;
  }
  return part;
}

absl::Status WritePart(FileSystem& files, const std::string& directory, int rank, const RankPart& part) {
  json tensors = json::array();
  for (const format::ManifestTensor& t : part.tensors) {
    const format::ManifestShard& s = t.shards.front();
    tensors.push_back({{"name", t.name},
                       {"kind", std::string(format::StateKindName(t.kind))},
                       {"shape", t.shape},
                       {"offset", s.byte_offset},
                       {"start", s.piece.box.start},
                       {"extent", s.piece.box.extent},
                       {"begin", s.piece.begin},
                       {"end", s.piece.end}});
  }
  const json text = {
      {"file", part.file}, {"size", part.contents.size}, {"checksum", part.contents.checksum}, {"tensors", tensors}};
  return files.WriteFileAtomically(JoinPath(directory, PartName(rank)), text.dump());
}

absl::StatusOr<RankPart> ReadPart(FileSystem& files, const std::string& directory, int rank) {
  const std::string path = JoinPath(directory, PartName(rank));
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, files.ReadFile(path));
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::DataLossError(path + ": not JSON");
  RankPart part;
  part.file = value.value("file", "");
  part.contents = {value.value("size", int64_t{0}), value.value("checksum", "")};
  for (const json& t : value.value("tensors", json::array())) {
    format::ManifestTensor tensor;
    tensor.name = t.value("name", "");
    tensor.kind = format::StateKindFromName(t.value("kind", "")).value_or(StateKind::kMaster);
    tensor.dtype = DType::kFloat32;
    tensor.shape = t.value("shape", std::vector<int64_t>());
    tensor.shards.push_back({part.file,
                             t.value("offset", int64_t{0}),
                             {{t.value("start", std::vector<int64_t>()), t.value("extent", std::vector<int64_t>())},
                              t.value("begin", int64_t{0}),
                              t.value("end", int64_t{0})}});
    part.tensors.push_back(std::move(tensor));
  }
  return part;
}

}  // namespace slipway::engine::checkpoint
