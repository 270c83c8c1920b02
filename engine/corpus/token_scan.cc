#include "engine/corpus/token_scan.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/parallel_for.h"
#include "engine/format/indexed_dataset_layout.h"

namespace slipway::engine::corpus {
namespace {

using format::TokenType;

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // a multiple of every token's size

// The first token of the piece that is no id below `limit`.
template <typename Stored>
std::optional<int64_t> FirstBad(const std::byte* bytes, int64_t count, int64_t limit) {
  const auto* tokens = reinterpret_cast<const Stored*>(bytes);
  Stored least = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_signed_v<Stored>) least = std::min(least, tokens[i]);
    largest = std::max(largest, tokens[i]);
  }
  const auto is_bad = [limit](Stored token) { return token < 0 || static_cast<int64_t>(token) >= limit; };
  if (!is_bad(least) && !is_bad(largest)) return std::nullopt;
  return std::find_if(tokens, tokens + count, is_bad) - tokens;
}

std::optional<int64_t> FirstBad(TokenType type, const std::byte* bytes, int64_t count, int64_t limit) {
  switch (type) {
    case TokenType::kUint8:
      return FirstBad<uint8_t>(bytes, count, limit);
    case TokenType::kInt8:
      return FirstBad<int8_t>(bytes, count, limit);
    case TokenType::kInt16:
      return FirstBad<int16_t>(bytes, count, limit);
    case TokenType::kUint16:
      return FirstBad<uint16_t>(bytes, count, limit);
    case TokenType::kInt32:
      return FirstBad<int32_t>(bytes, count, limit);
    case TokenType::kInt64:
      return FirstBad<int64_t>(bytes, count, limit);
  }
  return std::nullopt;
}

// Several threads over the pieces of one file. The pieces are taken in order, so once a fault is known only those before
// it matter.
class Scan {
 public:
  Scan(const RandomAccessFile& file, TokenType type, const TokenScanOptions& options)
      : file_(file), type_(type), size_(format::TokenSize(type)), options_(options) {}

  absl::Status Run() {
    const int64_t pieces = (file_.size() + kPieceBytes - 1) / kPieceBytes;
    ParallelFor(pieces, WorkerCount(options_.workers), [this](int64_t piece) { Check(piece * kPieceBytes); });
    return status_;
  }
  // The place of the first bad id in the file, in tokens.
  const std::optional<int64_t>& first_bad() const { return first_bad_; }

 private:
  void Check(int64_t begin) {
    {
      std::lock_guard lock(mutex_);
      if (!status_.ok() || (first_bad_.has_value() && *first_bad_ * size_ < begin)) return;
    }
    const int64_t bytes = std::min(kPieceBytes, file_.size() - begin);
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    const absl::Status read = file_.Read(begin, absl::MakeSpan(buffer.get(), static_cast<size_t>(bytes)));
    std::optional<int64_t> bad;
    if (read.ok()) bad = FirstBad(type_, buffer.get(), bytes / size_, options_.vocab_size);
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = read;
    if (bad.has_value()) first_bad_ = std::min(begin / size_ + *bad, first_bad_.value_or(*bad + begin / size_));
    done_ += bytes;
    if (options_.progress) options_.progress(done_, file_.size());
  }

  const RandomAccessFile& file_;
  const TokenType type_;
  const int64_t size_;
  const TokenScanOptions& options_;
  std::mutex mutex_;
  absl::Status status_;
  std::optional<int64_t> first_bad_;
  int64_t done_ = 0;
};

}  // namespace

absl::Status BadTokenId(const format::IndexedDataset& dataset, int64_t sequence, int64_t offset, int64_t id,
                        int64_t vocab_size) {
  return absl::DataLossError(StrCat(format::DataPath(dataset.prefix()), ": document ", dataset.DocumentOf(sequence),
                                    " (sequence ", sequence, ", token ", offset, ") holds the id ", id,
                                    ", but the model has ", vocab_size,
                                    " ids; was the data prepared with another tokenizer?"));
}

absl::Status ScanTokens(FileSystem& files, const format::IndexedDataset& dataset, const TokenScanOptions& options) {
  // Not through the mapping: a file that shrinks meanwhile is an error here and not a signal.
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                           files.OpenForRead(format::DataPath(dataset.prefix())));
  Scan scan(*file, dataset.token_type(), options);
  SLIPWAY_RETURN_IF_ERROR(scan.Run());
  if (!scan.first_bad().has_value()) return absl::OkStatus();
  const int64_t sequence = dataset.SequenceAt(*scan.first_bad());
  const int64_t offset = *scan.first_bad() - dataset.SequenceStart(sequence);
  int32_t id = 0;
  // Ids that no int32 holds are told by Read itself.
  SLIPWAY_RETURN_IF_ERROR(dataset.Read(sequence, offset, absl::MakeSpan(&id, 1)));
  return BadTokenId(dataset, sequence, offset, id, options.vocab_size);
}

}  // namespace slipway::engine::corpus
