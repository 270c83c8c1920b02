// Megatron-LM's indexed dataset: `<prefix>.bin` holds token ids end to end, `<prefix>.idx` says where each sequence
// lies and where documents end (megatron/core/datasets/indexed_dataset.py; the layout is in
// docs/formats/indexed-dataset.md).
#ifndef SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_H_
#define SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file_system.h"

namespace slipway::engine::format {

// The integer types that an indexed dataset can have; values are the codes in the file.
enum class TokenType : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

int64_t TokenSize(TokenType type);
std::string_view TokenTypeName(TokenType type);
// Megatron-LM's choice: uint16 below 65500 ids, else (also when the number is not known) int32.
TokenType TokenTypeForVocabulary(std::optional<int64_t> vocabulary_size);

// A dataset mapped into memory. Immutable and thread-safe. The files must not be shortened while it lives.
class IndexedDataset {
 public:
  // Checks every length, offset and document boundary against each other and against both files' sizes, so that no
  // later read can fail on them. NotFound or InvalidArgument naming the file and the two numbers that disagree. Memory
  // does not grow with the number of sequences.
  static absl::StatusOr<IndexedDataset> Open(FileSystem& file_system, const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t sequence_count() const { return sequences_; }
  int64_t document_count() const { return documents_; }
  int64_t token_count() const { return tokens_; }

  // Tokens of a sequence in [0, sequence_count()).
  int64_t SequenceLength(int64_t sequence) const;
  // Tokens before it.
  int64_t SequenceStart(int64_t sequence) const;
  // The first sequence of a document in [0, document_count()], where the last value is sequence_count().
  int64_t DocumentStart(int64_t document) const;
  // The sequence that holds a token in [0, token_count()).
  int64_t SequenceAt(int64_t token) const;
  // The document that holds a sequence.
  int64_t DocumentOf(int64_t sequence) const;
  // Fills `out` with the tokens from `offset` on. OutOfRange when the sequence does not have them all; InvalidArgument,
  // naming the document, for an id that is negative or above 2^31 - 1.
  absl::Status Read(int64_t sequence, int64_t offset, absl::Span<int32_t> out) const;
  // DataLoss, naming the file and what it was and is, when a file has another size or time of change than at Open: what
  // is read from then on is not what the run was started with. Costs two calls of stat.
  absl::Status CheckUnchanged(FileSystem& file_system) const;

 private:
  IndexedDataset() = default;
  absl::Status CheckIndex(std::string_view index, const std::string& index_path);
  absl::Status CheckSequences(const std::string& index_path, const std::string& data_path) const;
  absl::Status CheckDocuments(const std::string& index_path) const;

  std::string prefix_;
  std::unique_ptr<MappedFile> index_;
  std::unique_ptr<MappedFile> data_;
  FileInfo index_info_;
  FileInfo data_info_;
  TokenType type_ = TokenType::kInt32;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  const char* lengths_ = nullptr;     // int32 each, unaligned
  const char* offsets_ = nullptr;     // int64 each, unaligned, in bytes
  const char* boundaries_ = nullptr;  // int64 each, unaligned
};

// Writes a dataset, byte for byte what Megatron-LM writes. Not thread-safe. The index appears last and whole, so an
// unfinished or failed run leaves nothing that opens.
class IndexedDatasetWriter {
 public:
  // Removes an index that an earlier run left under this prefix, because its .bin is about to change.
  static absl::StatusOr<IndexedDatasetWriter> Create(FileSystem& file_system, const std::string& prefix,
                                                     TokenType type);

  // InvalidArgument for an id that the type cannot hold.
  absl::Status AddSequence(absl::Span<const int32_t> tokens);
  // Ends a document after the sequences added since the last one; there may be none, and the boundary stays all the
  // same.
  void EndDocument();
  // Appends all of another dataset of the same type. FailedPrecondition when a document is still open here or the types
  // differ.
  absl::Status AddIndex(const std::string& prefix);
  // Syncs, and writes the index. FailedPrecondition when sequences lie behind the last document's end.
  absl::Status Finish();

  int64_t sequence_count() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t document_count() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t token_count() const { return tokens_; }

 private:
  IndexedDatasetWriter(FileSystem& file_system, std::string prefix, TokenType type)
      : file_system_(&file_system), prefix_(std::move(prefix)), type_(type) {}
  absl::Status FlushIfLarge(size_t limit);

  FileSystem* file_system_;
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<WritableFile> data_;
  std::string buffer_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_ = {0};
  int64_t tokens_ = 0;
};

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_H_
