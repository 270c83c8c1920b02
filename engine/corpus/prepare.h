// JSONL with texts to indexed datasets, byte for byte what Megatron-LM's tools/preprocess_data.py writes:
// <prefix>_<key>_document.bin and .idx for each JSON key.
#ifndef SLIPWAY_ENGINE_CORPUS_PREPARE_H_
#define SLIPWAY_ENGINE_CORPUS_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::engine::corpus {

struct PrepareProgress {
  int64_t bytes_read = 0;
  int64_t bytes_total = 0;
  int64_t lines = 0;
  int64_t tokens = 0;
};

struct PrepareOptions {
  std::string input;
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  // The tokenizer's end-of-sequence token behind each document that is not empty.
  bool append_eod = false;
  int workers = 0;  // 0: one a core
  // A line that is no JSON, or lacks a key: left out of every output and counted, instead of ending the run.
  bool skip_bad_lines = false;
  // Called from the calling thread, a few times a second at most times.
  std::function<void(const PrepareProgress&)> progress;
};

struct PreparedOutput {
  std::string key;
  std::string prefix;  // of the .bin and .idx
  int64_t documents = 0;
  int64_t empty_documents = 0;  // they keep their boundary and get no EOD
  int64_t sequences = 0;
  int64_t tokens = 0;
};

struct PrepareReport {
  int64_t lines = 0;  // that are not blank
  int64_t skipped = 0;
  std::vector<DroppedLine> skipped_lines;  // the first ChatReport::kMaxDroppedLines
  std::vector<PreparedOutput> outputs;
};

// A value that is a list of texts is a document of several sequences. Order is kept whatever the number of workers;
// memory does not grow with the file, but for 12 bytes a sequence and 8 a document. InvalidArgument naming file, line
// and key for bad input, and for a file without any document. After any error no output's index is left. Thread-safe
// for different outputs.
absl::StatusOr<PrepareReport> PrepareIndexedDatasets(FileSystem& files, const tokenizer::Tokenizer& tokenizer,
                                                     const PrepareOptions& options);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_PREPARE_H_
