#include "engine/checkpoint/weight_stream.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/status_macros.h"
#include "engine/format/reshard.h"

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;

}  // namespace

absl::StatusOr<const RandomAccessFile*> WeightStream::File(const std::string& name) {
  std::unique_ptr<RandomAccessFile>& file = open_[name];
  if (file == nullptr) {
    SLIPWAY_ASSIGN_OR_RETURN(file, files_.OpenForRead(JoinPath(directory_, name)));
  }
  return file.get();
}

absl::Status WeightStream::Give(const format::ManifestTensor& tensor, const format::AppendBytes& append) {
  std::vector<format::Piece> pieces;
  std::vector<const RandomAccessFile*> sources;
  for (const format::ManifestShard& shard : tensor.shards) {
    pieces.push_back(shard.piece);
    SLIPWAY_ASSIGN_OR_RETURN(const RandomAccessFile* file, File(shard.file));
    sources.push_back(file);
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<format::CopyRange> copies,
                           format::PlanCopies(tensor.shape, pieces, format::WholeTensor(tensor.shape)));
  const int64_t element = DTypeSize(tensor.dtype);
  const int64_t capacity = kBufferBytes / element;
  std::vector<std::byte> buffer(static_cast<size_t>(kBufferBytes));
  int64_t held = 0;  // elements in the buffer
  const auto flush = [&] {
    const auto bytes = static_cast<size_t>(held * element);
    held = 0;
    return append(absl::MakeConstSpan(buffer.data(), bytes));
  };
  for (const format::CopyRange& copy : copies) {
    const int64_t start = tensor.shards[copy.source].byte_offset + copy.source_element * element;
    for (int64_t done = 0; done < copy.count;) {
      const int64_t count = std::min(copy.count - done, capacity - held);
      SLIPWAY_RETURN_IF_ERROR(sources[copy.source]->Read(
          start + done * element,
          absl::MakeSpan(buffer.data() + held * element, static_cast<size_t>(count * element))));
      done += count;
      held += count;
      if (held == capacity) SLIPWAY_RETURN_IF_ERROR(flush());
    }
  }
  return held > 0 ? flush() : absl::OkStatus();
}

}  // namespace slipway::engine::checkpoint
