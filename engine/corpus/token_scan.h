// Checks every token id of an indexed dataset against a model's vocabulary, before anybody trains on it.
#ifndef SLIPWAY_ENGINE_CORPUS_TOKEN_SCAN_H_
#define SLIPWAY_ENGINE_CORPUS_TOKEN_SCAN_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/file_system.h"
#include "engine/format/indexed_dataset.h"

namespace slipway::engine::corpus {

struct TokenScanOptions {
  int64_t vocab_size = 0;  // ids at or above it are refused
  int workers = 0;         // 0: one a core
  // Told how many of the file's bytes are checked, from one thread at a time; may be empty.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// Reads the whole file once, whatever its size, in small pieces on several threads: as fast as the disk gives it.
// DataLoss for the first bad id of the file, naming file, document, sequence, position, id and vocabulary size; errors
// of reading as they are.
absl::Status ScanTokens(FileSystem& files, const format::IndexedDataset& dataset, const TokenScanOptions& options);

// The error for an id that the model does not have, at token `offset` of a sequence.
absl::Status BadTokenId(const format::IndexedDataset& dataset, int64_t sequence, int64_t offset, int64_t id,
                        int64_t vocab_size);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_TOKEN_SCAN_H_
