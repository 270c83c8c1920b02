// JSONL files, one JSON value a line, read as a stream. A byte order mark at the start and CR before LF are dropped;
// lines of white space alone are skipped but counted.
#ifndef SLIPWAY_ENGINE_CORPUS_JSONL_H_
#define SLIPWAY_ENGINE_CORPUS_JSONL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/tokenizer/json_text.h"

namespace slipway::engine::corpus {

using tokenizer::Json;

struct JsonlLine {
  int64_t number = 0;  // from 1
  std::string text;
};

// Not thread-safe. Memory is bounded by one line and a buffer.
class JsonlReader {
 public:
  static constexpr int64_t kMaxLineBytes = int64_t{256} << 20;

  // `files` must outlive the reader.
  static absl::StatusOr<JsonlReader> Open(FileSystem& files, const std::string& path,
                                          int64_t max_line_bytes = kMaxLineBytes);

  // False at the end. InvalidArgument naming file and line for a line longer than the limit, and for a file in UTF-16.
  absl::StatusOr<bool> Next(JsonlLine& line);

  const std::string& path() const { return file_->path(); }
  int64_t size() const { return file_->size(); }
  // Bytes of the file behind the lines given so far.
  int64_t bytes_read() const { return offset_ - static_cast<int64_t>(buffer_.size() - position_); }

 private:
  JsonlReader(std::unique_ptr<RandomAccessFile> file, int64_t max_line_bytes)
      : file_(std::move(file)), max_line_bytes_(max_line_bytes) {}

  // Reads on into the buffer; false at the end of the file.
  absl::StatusOr<bool> Fill();
  // The next line without its ending, blank or not.
  absl::StatusOr<bool> NextRaw(std::string& text);

  std::unique_ptr<RandomAccessFile> file_;
  int64_t max_line_bytes_;
  int64_t offset_ = 0;  // of what Fill reads next
  std::string buffer_;
  size_t position_ = 0;  // of the next line in the buffer
  int64_t line_number_ = 0;
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_JSONL_H_
