#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/bfloat16.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/hf_weights.h"
#include "engine/format/reshard.h"

namespace slipway::engine::format {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

struct Shard {
  std::string name;
  std::vector<const HfTensorSpec*> tensors;
};

// huggingface_hub's split_state_dict_into_shards: greedy in the given order; an oversized tensor goes alone without
// closing the shard being filled.
absl::StatusOr<std::vector<Shard>> SplitIntoShards(const std::vector<HfTensorSpec>& tensors, int64_t max_bytes) {
  std::vector<Shard> shards;
  Shard current;
  int64_t current_bytes = 0;
  for (const HfTensorSpec& tensor : tensors) {
    const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
    if (!elements.ok()) return Annotate(elements.status(), absl::StrCat("tensor \"", tensor.name, "\""));
    const int64_t bytes = *elements * DTypeSize(tensor.dtype);
    if (bytes > max_bytes) {
      shards.push_back({"", {&tensor}});
      continue;
    }
    if (current_bytes + bytes > max_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.tensors.push_back(&tensor);
    current_bytes += bytes;
  }
  if (!current.tensors.empty()) shards.push_back(std::move(current));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name =
        shards.size() == 1 ? kSingleFile : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

absl::Status CheckSpecs(const std::vector<HfTensorSpec>& tensors, const HfWriteOptions& options) {
  if (tensors.empty()) return absl::InvalidArgumentError("a model without tensors cannot be written");
  if (options.max_file_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("files of at most ", options.max_file_bytes, " bytes hold nothing"));
  }
  std::set<std::string> names;
  for (const HfTensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("two tensors cannot both be named \"", tensor.name, "\""));
    }
    if (tensor.dtype != tensor.source_dtype &&
        !(IsFloatingPoint(tensor.dtype) && IsFloatingPoint(tensor.source_dtype))) {
      return absl::InvalidArgumentError(StrCat("tensor \"", tensor.name, "\" is ", DTypeName(tensor.source_dtype),
                                               " and cannot be written as ", DTypeName(tensor.dtype),
                                               ": only floating-point tensors are converted"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNoWeightsYet(FileSystem& file_system, const std::string& directory) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(directory));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".safetensors") || name == kIndexFile) {
      return absl::AlreadyExistsError(
          absl::StrCat(directory, " has weights already (", name, "); export into another directory or remove them"));
    }
  }
  return absl::OkStatus();
}

class ShardWriter {
 public:
  ShardWriter(FileSystem& file_system, const std::string& directory, const TensorSource& source, HfWriteReport* report)
      : file_system_(file_system), directory_(directory), source_(source), report_(report) {}

  absl::Status Write(const Shard& shard) {
    std::vector<TensorInfo> infos;
    std::map<std::string, const HfTensorSpec*> specs;
    for (const HfTensorSpec* spec : shard.tensors) {
      infos.push_back({spec->name, spec->dtype, spec->shape});
      specs.emplace(spec->name, spec);
    }
    report_->files.push_back(shard.name);
    const std::string path = JoinPath(directory_, shard.name);
    SLIPWAY_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                             SafetensorsWriter::Create(file_system_, path, std::move(infos), {{"format", "pt"}}));
    for (const StoredTensor& tensor : writer.layout()) {
      if (absl::Status status = WriteTensor(tensor, *specs.at(tensor.name), &writer); !status.ok()) {
        return Annotate(status, absl::StrCat(path, ": tensor \"", tensor.name, "\""));
      }
    }
    return writer.Finish();
  }

 private:
  absl::Status WriteTensor(const StoredTensor& tensor, const HfTensorSpec& spec, SafetensorsWriter* writer) {
    CastReport casts;
    int64_t written = 0;
    std::vector<std::byte> converted;
    const size_t from_size = static_cast<size_t>(DTypeSize(spec.source_dtype));
    const size_t to_size = static_cast<size_t>(DTypeSize(spec.dtype));
    const auto append = [&](absl::Span<const std::byte> piece) -> absl::Status {
      converted.resize(piece.size() / from_size * to_size);
      if (written + static_cast<int64_t>(converted.size()) > tensor.bytes) {
        return absl::FailedPreconditionError("the source gives more elements than the shape has");
      }
      SLIPWAY_RETURN_IF_ERROR(CastElements(piece, spec.source_dtype, absl::MakeSpan(converted), spec.dtype, &casts));
      written += static_cast<int64_t>(converted.size());
      return writer->Append({reinterpret_cast<const char*>(converted.data()), converted.size()});
    };
    SLIPWAY_RETURN_IF_ERROR(source_(spec, append));
    if (written != tensor.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("the source gave ", written, " bytes of the ", tensor.bytes, " that the shape needs"));
    }
    if (casts.overflows > 0) report_->overflows.push_back({spec.name, casts.overflows});
    report_->total_bytes += tensor.bytes;
    return absl::OkStatus();
  }

  FileSystem& file_system_;
  const std::string& directory_;
  const TensorSource& source_;
  HfWriteReport* report_;
};

absl::Status WriteIndex(FileSystem& file_system, const std::string& directory, const std::vector<Shard>& shards,
                        HfWriteReport* report) {
  int64_t parameters = 0;
  nlohmann::json map = nlohmann::json::object();
  for (const Shard& shard : shards) {
    for (const HfTensorSpec* tensor : shard.tensors) {
      map[tensor->name] = shard.name;
      SLIPWAY_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor->shape));
      parameters += elements;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", parameters}, {"total_size", report->total_bytes}}},
                                {"weight_map", std::move(map)}};
  report->files.push_back(kIndexFile);
  return file_system.WriteFileAtomically(JoinPath(directory, kIndexFile), index.dump(2) + "\n");
}

}  // namespace

absl::StatusOr<HfWriteReport> WriteHfWeights(FileSystem& file_system, const std::string& directory,
                                             const std::vector<HfTensorSpec>& tensors, const HfWriteOptions& options,
                                             const TensorSource& source) {
  SLIPWAY_RETURN_IF_ERROR(CheckSpecs(tensors, options));
  SLIPWAY_RETURN_IF_ERROR(CheckNoWeightsYet(file_system, directory));
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<Shard> shards, SplitIntoShards(tensors, options.max_file_bytes));
  HfWriteReport report;
  const auto write = [&]() -> absl::Status {
    ShardWriter writer(file_system, directory, source, &report);
    for (const Shard& shard : shards) SLIPWAY_RETURN_IF_ERROR(writer.Write(shard));
    if (shards.size() > 1) SLIPWAY_RETURN_IF_ERROR(WriteIndex(file_system, directory, shards, &report));
    return file_system.SyncDirectory(directory);
  };
  if (absl::Status status = write(); !status.ok()) {
    // The write's error is the one to report.
    for (const std::string& name : report.files) file_system.RemoveFile(JoinPath(directory, name)).IgnoreError();
    return status;
  }
  return report;
}

}  // namespace slipway::engine::format
