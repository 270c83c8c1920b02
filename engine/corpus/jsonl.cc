#include "engine/corpus/jsonl.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\v\f") == std::string_view::npos; }

}  // namespace

absl::StatusOr<JsonlReader> JsonlReader::Open(FileSystem& files, const std::string& path, int64_t max_line_bytes) {
  SLIPWAY_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, files.OpenForRead(path));
  return JsonlReader(std::move(file), max_line_bytes);
}

absl::StatusOr<bool> JsonlReader::Fill() {
  const int64_t count = std::min(kReadBytes, file_->size() - offset_);
  if (count <= 0) return false;
  buffer_.erase(0, position_);
  position_ = 0;
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + static_cast<size_t>(count));
  SLIPWAY_RETURN_IF_ERROR(file_->Read(
      offset_, absl::MakeSpan(reinterpret_cast<std::byte*>(buffer_.data() + old_size), static_cast<size_t>(count))));
  offset_ += count;
  return true;
}

absl::StatusOr<bool> JsonlReader::NextRaw(std::string& text) {
  size_t searched = position_;
  while (true) {
    const size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos) {
      text.assign(buffer_, position_, newline - position_);
      position_ = newline + 1;
      break;
    }
    const int64_t length = static_cast<int64_t>(buffer_.size() - position_);
    if (length > max_line_bytes_) {
      return absl::InvalidArgumentError(StrCat(path(), ":", line_number_ + 1, ": the line is longer than ",
                                               max_line_bytes_, " bytes; is this a JSONL file?"));
    }
    SLIPWAY_ASSIGN_OR_RETURN(const bool more, Fill());
    searched = position_ + static_cast<size_t>(length);
    if (!more) {
      if (length == 0) return false;
      text.assign(buffer_, position_);
      position_ = buffer_.size();
      break;
    }
  }
  ++line_number_;
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return true;
}

absl::StatusOr<bool> JsonlReader::Next(JsonlLine& line) {
  while (true) {
    SLIPWAY_ASSIGN_OR_RETURN(const bool more, NextRaw(line.text));
    if (!more) return false;
    if (line_number_ == 1) {
      if (line.text.compare(0, kByteOrderMark.size(), kByteOrderMark) == 0) line.text.erase(0, kByteOrderMark.size());
      if (line.text.compare(0, 2, "\xFF\xFE") == 0 || line.text.compare(0, 2, "\xFE\xFF") == 0) {
        return absl::InvalidArgumentError(StrCat(path(), ":1: the file is UTF-16; JSONL must be UTF-8"));
      }
    }
    if (IsBlank(line.text)) continue;
    line.number = line_number_;
    return true;
  }
}

}  // namespace slipway::engine::corpus
