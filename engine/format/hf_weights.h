// The weights of a Hugging Face model directory: `model.safetensors`, or `model.safetensors.index.json` with its
// shards, as transformers' save_pretrained writes them.
#ifndef SLIPWAY_ENGINE_FORMAT_HF_WEIGHTS_H_
#define SLIPWAY_ENGINE_FORMAT_HF_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/file_system.h"
#include "engine/format/safetensors.h"

namespace slipway::engine::format {

struct HfTensor {
  StoredTensor stored;  // name, dtype, shape, byte range in its file
  size_t file = 0;      // index into files()
};

// Immutable and thread-safe.
class HfWeights {
 public:
  // Where an index is, it decides: other weight files in the directory are not looked at, nor tensors of a shard that
  // the index does not name. Every shard is opened and checked here, so a missing or damaged one shows before anything
  // is loaded. NotFound when the directory has no safetensors weights or a shard is missing, InvalidArgument for a bad
  // one; the error names directory, shard and tensor.
  static absl::StatusOr<HfWeights> Open(FileSystem& file_system, const std::string& directory);

  // Sorted by name.
  const std::vector<HfTensor>& tensors() const { return tensors_; }
  // nullptr when there is none. Valid as long as this object.
  const HfTensor* Find(std::string_view name) const;
  // Names in the directory.
  const std::vector<std::string>& files() const { return file_names_; }
  int64_t total_bytes() const;
  // Bytes [byte_offset, byte_offset + out.size()) of the tensor.
  absl::Status Read(const HfTensor& tensor, int64_t byte_offset, absl::Span<std::byte> out) const;

 private:
  HfWeights() = default;
  absl::Status AddFile(FileSystem& file_system, const std::string& directory, const std::string& name);

  std::vector<std::string> file_names_;
  std::vector<SafetensorsFile> files_;
  std::vector<HfTensor> tensors_;
};

// A tensor to write; `dtype` is what the file gets and `source_dtype` what the source gives. Only floating-point types
// are converted.
struct HfTensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kBFloat16;
  DType source_dtype = DType::kBFloat16;
};

struct HfWriteOptions {
  // A file takes tensors as long as they fit; a tensor that is larger alone gets a file of its own.
  int64_t max_file_bytes = 5'000'000'000;
};

// Elements that were finite and became infinite in the file's type.
struct HfOverflow {
  std::string tensor;
  int64_t elements = 0;
};

struct HfWriteReport {
  std::vector<std::string> files;  // all written names, the index included
  int64_t total_bytes = 0;         // of the tensors
  std::vector<HfOverflow> overflows;
};

// Gives all elements of one tensor in row-major order, as source_dtype, through `append`, in pieces of whole elements.
using AppendBytes = std::function<absl::Status(absl::Span<const std::byte>)>;
using TensorSource = std::function<absl::Status(const HfTensorSpec& tensor, const AppendBytes& append)>;

// Writes the weights of a model into an existing directory: one file, or shards and an index. The tensors keep their
// order for the choice of shards. AlreadyExists when the directory has safetensors weights. A failed call leaves no
// weight file behind (as far as the disk lets us).
absl::StatusOr<HfWriteReport> WriteHfWeights(FileSystem& file_system, const std::string& directory,
                                             const std::vector<HfTensorSpec>& tensors, const HfWriteOptions& options,
                                             const TensorSource& source);

// A source that copies from another directory of weights.
TensorSource SourceFromWeights(const HfWeights& weights);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_HF_WEIGHTS_H_
