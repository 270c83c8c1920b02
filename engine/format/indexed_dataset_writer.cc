#include <algorithm>
#include <limits>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/indexed_dataset.h"
#include "engine/format/indexed_dataset_layout.h"
#include "engine/format/little_endian.h"

namespace slipway::engine::format {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

template <typename Stored>
bool AppendTokens(absl::Span<const int32_t> tokens, std::string* out) {
  for (const int32_t token : tokens) {
    if (!std::in_range<Stored>(token)) return false;
    AppendLittleEndian(static_cast<Stored>(token), out);
  }
  return true;
}

bool AppendTokensAs(TokenType type, absl::Span<const int32_t> tokens, std::string* out) {
  switch (type) {
    case TokenType::kUint8:
      return AppendTokens<uint8_t>(tokens, out);
    case TokenType::kInt8:
      return AppendTokens<int8_t>(tokens, out);
    case TokenType::kInt16:
      return AppendTokens<int16_t>(tokens, out);
    case TokenType::kUint16:
      return AppendTokens<uint16_t>(tokens, out);
    case TokenType::kInt32:
      return AppendTokens<int32_t>(tokens, out);
    case TokenType::kInt64:
      return AppendTokens<int64_t>(tokens, out);
  }
  return false;
}

}  // namespace

absl::StatusOr<IndexedDatasetWriter> IndexedDatasetWriter::Create(FileSystem& file_system, const std::string& prefix,
                                                                  TokenType type) {
  IndexedDatasetWriter writer(file_system, prefix, type);
  if (absl::Status status = file_system.RemoveFile(IndexPath(prefix)); !status.ok() && !absl::IsNotFound(status)) {
    return status;
  }
  SLIPWAY_ASSIGN_OR_RETURN(writer.data_, file_system.OpenForWrite(DataPath(prefix), WriteMode::kTruncate));
  return writer;
}

absl::Status IndexedDatasetWriter::FlushIfLarge(size_t limit) {
  if (buffer_.size() < limit) return absl::OkStatus();
  SLIPWAY_RETURN_IF_ERROR(data_->Append(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::AddSequence(absl::Span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(DataPath(prefix_), ": a sequence of ", tokens.size(),
                                                   " tokens is too long; the format ends at 2147483647"));
  }
  const size_t before = buffer_.size();
  if (!AppendTokensAs(type_, tokens, &buffer_)) {
    buffer_.resize(before);
    return absl::InvalidArgumentError(StrCat(DataPath(prefix_), ": sequence ", sequence_count(),
                                             " holds a token id that ", TokenTypeName(type_), " cannot"));
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
  return FlushIfLarge(kBufferBytes);
}

void IndexedDatasetWriter::EndDocument() { boundaries_.push_back(sequence_count()); }

absl::Status IndexedDatasetWriter::AddIndex(const std::string& prefix) {
  if (boundaries_.back() != sequence_count()) {
    return absl::FailedPreconditionError(absl::StrCat(prefix_, ": ", prefix, " cannot be added inside a document"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const IndexedDataset other, IndexedDataset::Open(*file_system_, prefix));
  if (other.token_type() != type_) {
    return absl::FailedPreconditionError(StrCat(prefix, " holds ", TokenTypeName(other.token_type()),
                                                " and cannot be added to ", prefix_, ", which holds ",
                                                TokenTypeName(type_)));
  }
  const int64_t first = sequence_count();
  lengths_.reserve(lengths_.size() + static_cast<size_t>(other.sequence_count()));
  for (int64_t i = 0; i < other.sequence_count(); ++i) {
    lengths_.push_back(static_cast<int32_t>(other.SequenceLength(i)));
  }
  for (int64_t d = 1; d <= other.document_count(); ++d) boundaries_.push_back(first + other.DocumentStart(d));
  tokens_ += other.token_count();

  SLIPWAY_RETURN_IF_ERROR(FlushIfLarge(1));
  SLIPWAY_ASSIGN_OR_RETURN(const auto data, file_system_->OpenForRead(DataPath(prefix)));
  std::string piece;
  for (int64_t done = 0; done < data->size();) {
    piece.resize(static_cast<size_t>(std::min<int64_t>(kBufferBytes, data->size() - done)));
    SLIPWAY_RETURN_IF_ERROR(data->Read(done, absl::MakeSpan(reinterpret_cast<std::byte*>(piece.data()), piece.size())));
    SLIPWAY_RETURN_IF_ERROR(data_->Append(piece));
    done += static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::Finish() {
  if (boundaries_.back() != sequence_count()) {
    return absl::FailedPreconditionError(
        absl::StrCat(prefix_, ": the last document, which begins at sequence ", boundaries_.back(), ", was not ended"));
  }
  SLIPWAY_RETURN_IF_ERROR(FlushIfLarge(1));
  SLIPWAY_RETURN_IF_ERROR(data_->Sync());
  SLIPWAY_RETURN_IF_ERROR(data_->Close());

  std::string index(kIndexMagic);
  index.reserve(kIndexHeaderBytes + 12 * lengths_.size() + 8 * boundaries_.size());
  AppendLittleEndian(kIndexVersion, &index);
  AppendLittleEndian(static_cast<uint8_t>(type_), &index);
  AppendLittleEndian(static_cast<uint64_t>(lengths_.size()), &index);
  AppendLittleEndian(static_cast<uint64_t>(boundaries_.size()), &index);
  for (const int32_t length : lengths_) AppendLittleEndian(length, &index);
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    AppendLittleEndian(offset, &index);
    offset += length * TokenSize(type_);
  }
  for (const int64_t boundary : boundaries_) AppendLittleEndian(boundary, &index);
  return file_system_->WriteFileAtomically(IndexPath(prefix_), index);
}

}  // namespace slipway::engine::format
