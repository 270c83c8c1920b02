// The weights of a checkpoint as whole tensors in row-major order, whatever layout wrote them.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_WEIGHT_STREAM_H_
#define SLIPWAY_ENGINE_CHECKPOINT_WEIGHT_STREAM_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/format/hf_weights.h"
#include "engine/format/manifest.h"

namespace slipway::engine::checkpoint {

// Opens each file of the checkpoint once. Not thread-safe.
class WeightStream {
 public:
  // `files` outlives it.
  WeightStream(FileSystem& files, std::string directory) : files_(files), directory_(std::move(directory)) {}

  // Gives all elements of the tensor to `append`, a few megabytes at a time. Errors name the file.
  absl::Status Give(const format::ManifestTensor& tensor, const format::AppendBytes& append);

 private:
  absl::StatusOr<const RandomAccessFile*> File(const std::string& name);

  FileSystem& files_;
  const std::string directory_;
  std::map<std::string, std::unique_ptr<RandomAccessFile>> open_;
};

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_WEIGHT_STREAM_H_
