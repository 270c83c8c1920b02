#include "engine/checkpoint/rank_part.h"

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/safetensors.h"

namespace slipway::engine::checkpoint {
namespace {

using format::StateKind;
using nlohmann::json;

struct StoredKind {
  StateKind kind;
  at::Tensor parallel::Bucket::*slice;
};
// The weights follow from the master weights.
constexpr std::array<StoredKind, 3> kStored = {{{StateKind::kMaster, &parallel::Bucket::master},
                                                {StateKind::kExpAvg, &parallel::Bucket::exp_avg},
                                                {StateKind::kExpAvgSq, &parallel::Bucket::exp_avg_sq}}};

std::string SliceName(int bucket, StateKind kind) {
  return StrCat("bucket", bucket, ".", std::string(format::StateKindName(kind)));
}

// The slices to write, by their name in the file.
std::map<std::string, at::Tensor> SlicesOf(parallel::FlatStore& store) {
  std::map<std::string, at::Tensor> slices;
  for (size_t b = 0; b < store.buckets().size(); ++b) {
    for (const StoredKind& stored : kStored) {
      const at::Tensor& slice = store.buckets()[b].*stored.slice;
      if (slice.defined() && slice.numel() > 0) slices[SliceName(static_cast<int>(b), stored.kind)] = slice;
    }
  }
  return slices;
}

absl::Status AppendTensor(format::SafetensorsWriter& writer, const at::Tensor& tensor) {
  constexpr int64_t kChunk = int64_t{16} << 20;
  for (int64_t begin = 0; begin < tensor.numel(); begin += kChunk) {
    const at::Tensor host = tensor.narrow(0, begin, std::min(kChunk, tensor.numel() - begin)).cpu().contiguous();
    SLIPWAY_RETURN_IF_ERROR(writer.Append({static_cast<const char*>(host.const_data_ptr()), host.nbytes()}));
  }
  return absl::OkStatus();
}

}  // namespace

std::string PartName(int rank) { return absl::StrFormat("rank-%05d.part.json", rank); }

absl::StatusOr<RankPart> WriteRankFile(FileSystem& files, const std::string& directory, int rank,
                                       parallel::FlatStore& store) {
  RankPart part;
  const std::map<std::string, at::Tensor> slices = SlicesOf(store);
  if (slices.empty()) return part;
  part.file = absl::StrFormat("rank-%05d.safetensors", rank);
  std::vector<format::TensorInfo> infos;
  for (const auto& [name, slice] : slices) infos.push_back({name, DType::kFloat32, {slice.numel()}});
  SLIPWAY_ASSIGN_OR_RETURN(
      format::SafetensorsWriter writer,
      format::SafetensorsWriter::Create(files, JoinPath(directory, part.file), std::move(infos), {}));
  std::map<std::string, int64_t> offsets;
  for (const format::StoredTensor& stored : writer.layout()) {
    offsets[stored.name] = stored.offset;
    SLIPWAY_RETURN_IF_ERROR(AppendTensor(writer, slices.at(stored.name)));
  }
  SLIPWAY_RETURN_IF_ERROR(writer.Finish());
  part.contents = {writer.file_size(), writer.checksum()};
  for (const parallel::OwnedRange& range : store.owned_ranges()) {
    if (!range.share->primary) continue;
    for (const StoredKind& stored : kStored) {
      const auto offset = offsets.find(SliceName(range.share->bucket, stored.kind));
      if (offset == offsets.end()) continue;
      format::ManifestTensor tensor;
      tensor.name = range.share->spec->name;
      tensor.kind = stored.kind;
      tensor.dtype = DType::kFloat32;
      tensor.shape = range.share->spec->shape;
      tensor.shards.push_back({part.file,
                               offset->second + range.offset * DTypeSize(DType::kFloat32),
                               {{range.share->box.start, range.share->box.extent}, range.begin, range.end}});
      part.tensors.push_back(std::move(tensor));
    }
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
