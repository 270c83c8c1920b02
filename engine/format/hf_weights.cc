#include "engine/format/hf_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/json_text.h"

namespace slipway::engine::format {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 256 << 20;

// A shard must lie in the directory itself: an index from the internet must not make us read other files.
absl::Status CheckShardName(const std::string& index_path, const std::string& tensor, const std::string& name) {
  const bool plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
                     name.find('\0') == std::string::npos && absl::EndsWith(name, ".safetensors");
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor \"", tensor, "\" is said to be in \"", name,
                                                 "\"; a shard must be a .safetensors file of the same directory"));
}

// Tensor name -> shard name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(FileSystem& file_system, const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(path, kMaxIndexBytes));
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json index, ParseJson(text, path));
  JsonFields fields(index, path);
  SLIPWAY_ASSIGN_OR_RETURN(const nlohmann::json* map, fields.Object("weight_map"));
  if (map->empty()) return fields.Refuse("weight_map", "names no tensor");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) return fields.Refuse("weight_map", StrCat("must give a file name for \"", tensor, "\""));
    const std::string name = shard.get<std::string>();
    SLIPWAY_RETURN_IF_ERROR(CheckShardName(path, tensor, name));
    shards.emplace(tensor, name);
  }
  return shards;
}

}  // namespace

absl::Status HfWeights::AddFile(FileSystem& file_system, const std::string& directory, const std::string& name) {
  SLIPWAY_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(file_system, JoinPath(directory, name)));
  file_names_.push_back(name);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<HfWeights> HfWeights::Open(FileSystem& file_system, const std::string& directory) {
  HfWeights weights;
  const std::string index_path = JoinPath(directory, kIndexFile);
  SLIPWAY_ASSIGN_OR_RETURN(const bool has_index, file_system.Exists(index_path));
  if (!has_index) {
    const std::string single = JoinPath(directory, kSingleFile);
    SLIPWAY_ASSIGN_OR_RETURN(const bool has_single, file_system.Exists(single));
    if (!has_single) {
      return absl::NotFoundError(absl::StrCat(directory, " has neither ", kSingleFile, " nor ", kIndexFile,
                                              "; weights are read from safetensors files only"));
    }
    SLIPWAY_RETURN_IF_ERROR(weights.AddFile(file_system, directory, kSingleFile));
    for (const StoredTensor& tensor : weights.files_[0].tensors()) weights.tensors_.push_back({tensor, 0});
    return weights;
  }

  using Index = std::map<std::string, std::string>;
  SLIPWAY_ASSIGN_OR_RETURN(const Index index, ReadIndex(file_system, index_path));
  std::map<std::string, size_t> file_of;
  for (const auto& [tensor, shard] : index) {
    const auto [found, added] = file_of.emplace(shard, weights.files_.size());
    if (added) {
      if (absl::Status status = weights.AddFile(file_system, directory, shard); !status.ok()) {
        return Annotate(status, absl::StrCat(index_path, " names shard ", shard, " for tensor \"", tensor, "\""));
      }
    }
    const StoredTensor* stored = weights.files_[found->second].Find(tensor);
    if (stored == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": tensor \"", tensor, "\" is said to be in ", shard,
                       ", which has no such tensor; the index and the shards do not belong "
                       "together"));
    }
    weights.tensors_.push_back({*stored, found->second});  // the index is sorted by tensor name
  }
  return weights;
}

const HfTensor* HfWeights::Find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const HfTensor& t, std::string_view n) { return t.stored.name < n; });
  return found != tensors_.end() && found->stored.name == name ? &*found : nullptr;
}

int64_t HfWeights::total_bytes() const {
  int64_t total = 0;
  for (const HfTensor& tensor : tensors_) total += tensor.stored.bytes;
  return total;
}

absl::Status HfWeights::Read(const HfTensor& tensor, int64_t byte_offset, absl::Span<std::byte> out) const {
  return files_[tensor.file].Read(tensor.stored, byte_offset, out);
}

TensorSource SourceFromWeights(const HfWeights& weights) {
  return [&weights](const HfTensorSpec& spec, const AppendBytes& append) -> absl::Status {
    const HfTensor* tensor = weights.Find(spec.name);
    if (tensor == nullptr) return absl::NotFoundError(absl::StrCat("there is no tensor \"", spec.name, "\" to copy"));
    constexpr int64_t kPieceBytes = 4 << 20;  // a multiple of every element size
    std::vector<std::byte> piece(static_cast<size_t>(std::min(kPieceBytes, tensor->stored.bytes)));
    for (int64_t done = 0; done < tensor->stored.bytes;) {
      const size_t count = static_cast<size_t>(std::min(kPieceBytes, tensor->stored.bytes - done));
      const absl::Span<std::byte> out = absl::MakeSpan(piece.data(), count);
      SLIPWAY_RETURN_IF_ERROR(weights.Read(*tensor, done, out));
      SLIPWAY_RETURN_IF_ERROR(append(out));
      done += static_cast<int64_t>(count);
    }
    return absl::OkStatus();
  };
}

}  // namespace slipway::engine::format
