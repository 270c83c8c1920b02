// Checkpoints for tests, written by hand in an awkward layout: every matrix is cut into two column boxes, each box into
// two ranges, dealt to two files. What reads them must plan its reads.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_TEST_CHECKPOINT_H_
#define SLIPWAY_ENGINE_CHECKPOINT_TEST_CHECKPOINT_H_

#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bfloat16.h"
#include "common/checksum.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "engine/arch/param_spec.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/hf_weights.h"
#include "engine/format/manifest.h"

namespace slipway::engine::checkpoint {

using FloatTensors = std::map<std::string, std::vector<float>>;

// All tensors of a model directory as float32.
inline absl::StatusOr<FloatTensors> ReadFloatTensors(FileSystem& files, const std::string& directory) {
  SLIPWAY_ASSIGN_OR_RETURN(const format::HfWeights weights, format::HfWeights::Open(files, directory));
  FloatTensors tensors;
  for (const format::HfTensor& tensor : weights.tensors()) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.stored.bytes));
    SLIPWAY_RETURN_IF_ERROR(weights.Read(tensor, 0, absl::MakeSpan(bytes)));
    std::vector<float>& floats = tensors[tensor.stored.name];
    floats.resize(bytes.size() / static_cast<size_t>(DTypeSize(tensor.stored.dtype)));
    CastReport casts;
    SLIPWAY_RETURN_IF_ERROR(
        CastElements(bytes, tensor.stored.dtype,
                     absl::MakeSpan(reinterpret_cast<std::byte*>(floats.data()), floats.size() * sizeof(float)),
                     DType::kFloat32, &casts));
  }
  return tensors;
}

inline std::vector<format::Box> AwkwardBoxes(const std::vector<int64_t>& shape) {
  if (shape.size() != 2) return {{std::vector<int64_t>(shape.size(), 0), shape}};
  const int64_t left = shape[1] / 2;
  return {{{0, 0}, {shape[0], left}}, {{0, left}, {shape[0], shape[1] - left}}};
}

// The elements of a box in its row-major order.
inline std::vector<float> ElementsOf(const std::vector<float>& whole, const std::vector<int64_t>& shape,
                                     const format::Box& box) {
  if (shape.size() != 2) return whole;
  std::vector<float> elements;
  for (int64_t row = 0; row < box.extent[0]; ++row) {
    const auto begin = whole.begin() + row * shape[1] + box.start[1];
    elements.insert(elements.end(), begin, begin + box.extent[1]);
  }
  return elements;
}

struct TestCheckpoint {
  int64_t step = 5;
  int64_t epoch = 1;
  std::string spec_json;
  std::string config_json;  // empty: none is stored
  std::string job_id = "job-test";
};

// Writes the masters of every untied parameter under `root`; returns the step's directory.
inline absl::StatusOr<std::string> WriteTestCheckpoint(FileSystem& files, const std::string& root,
                                                       const arch::ModelArch& arch, const FloatTensors& tensors,
                                                       const TestCheckpoint& checkpoint) {
  const format::CheckpointId id{checkpoint.step, checkpoint.epoch};
  SLIPWAY_ASSIGN_OR_RETURN(const std::string directory, format::BeginCheckpoint(files, root, id));
  format::Manifest manifest;
  manifest.job_id = checkpoint.job_id;
  manifest.step = checkpoint.step;
  manifest.epoch = checkpoint.epoch;
  manifest.resolved_spec = checkpoint.spec_json;
  manifest.mesh = {{"dp", 2}, {"tp", 2}};
  manifest.lineage = {{.epoch = checkpoint.epoch, .forked_from = {}}};
  std::map<std::string, std::string> contents = {{"part-0.bin", ""}, {"part-1.bin", ""}};
  for (const arch::ParamSpec& parameter : arch::BuildParamTable(arch)) {
    format::ManifestTensor stored{parameter.name, format::StateKind::kMaster, DType::kFloat32, parameter.shape, "", {}};
    if (parameter.tied_to.has_value()) {
      stored.alias_of = *parameter.tied_to;
    } else {
      for (const format::Box& box : AwkwardBoxes(parameter.shape)) {
        const std::vector<float> elements = ElementsOf(tensors.at(parameter.name), parameter.shape, box);
        const auto cut = static_cast<int64_t>(elements.size()) / 3;
        for (const auto& [name, begin, end] : {std::tuple{"part-1.bin", int64_t{0}, cut},
                                               std::tuple{"part-0.bin", cut, static_cast<int64_t>(elements.size())}}) {
          if (begin == end) continue;
          std::string& text = contents[name];
          stored.shards.push_back({name, static_cast<int64_t>(text.size()), {box, begin, end}});
          text.append(reinterpret_cast<const char*>(elements.data() + begin),
                      static_cast<size_t>(end - begin) * sizeof(float));
        }
      }
    }
    manifest.tensors.push_back(std::move(stored));
  }
  if (!checkpoint.config_json.empty()) contents[kConfigFile] = checkpoint.config_json;
  for (const auto& [name, text] : contents) {
    SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(JoinPath(directory, name), text));
    manifest.files[name] = {static_cast<int64_t>(text.size()), ChecksumOf(text)};
  }
  SLIPWAY_RETURN_IF_ERROR(format::CommitCheckpoint(files, root, manifest));
  return JoinPath(root, format::CheckpointName(id));
}

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_TEST_CHECKPOINT_H_
