// The safetensors format (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian header length, a
// JSON header padded with spaces to a multiple of 8, then the tensors without gaps. Reading refuses whatever the
// reference implementation refuses; writing gives the reference implementation's bytes.
#ifndef SLIPWAY_ENGINE_FORMAT_SAFETENSORS_H_
#define SLIPWAY_ENGINE_FORMAT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checksum.h"
#include "common/dtype.h"
#include "common/file_system.h"

namespace slipway::engine::format {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
};

struct StoredTensor : TensorInfo {
  int64_t offset = 0;  // of its first byte in the file
  int64_t bytes = 0;
};

// An open file. Immutable and thread-safe. Reads by pread, not through a mapping: a file that is cut or a disk that
// fails under a running job is an error there, not a signal.
class SafetensorsFile {
 public:
  // Checks everything that the header promises against itself and the file's size. The errors name the path and the
  // tensor; a hostile header costs no more memory than its own size, which is at most 100 MB.
  static absl::StatusOr<SafetensorsFile> Open(FileSystem& file_system, const std::string& path);

  const std::string& path() const { return file_->path(); }
  // Sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // nullptr when there is none. Valid as long as this object.
  const StoredTensor* Find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Bytes [byte_offset, byte_offset + out.size()) of the tensor; OutOfRange when they are not all inside it.
  absl::Status Read(const StoredTensor& tensor, int64_t byte_offset, absl::Span<std::byte> out) const;

 private:
  SafetensorsFile() = default;

  std::unique_ptr<RandomAccessFile> file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file tensor by tensor, never holding one whole. Not thread-safe.
class SafetensorsWriter {
 public:
  // Lays the file out and writes the header. InvalidArgument for a name given twice or not in UTF-8, or a bad shape.
  static absl::StatusOr<SafetensorsWriter> Create(FileSystem& file_system, const std::string& path,
                                                  std::vector<TensorInfo> tensors,
                                                  const std::map<std::string, std::string>& metadata);

  // In the order in which the bytes must be appended: widest type first, then by name.
  const std::vector<StoredTensor>& layout() const { return layout_; }
  // The next bytes of the file, in pieces of any size, across tensors if need be.
  absl::Status Append(std::string_view bytes);
  // Syncs and closes. FailedPrecondition when bytes are missing.
  absl::Status Finish();
  // Of the whole file, and its checksum; after Finish.
  int64_t file_size() const { return file_size_; }
  std::string checksum() const { return checksum_.Digest(); }

 private:
  SafetensorsWriter() = default;

  std::string path_;
  std::unique_ptr<WritableFile> file_;
  std::vector<StoredTensor> layout_;
  Checksum checksum_;
  int64_t file_size_ = 0;
  int64_t written_ = 0;
};

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_SAFETENSORS_H_
