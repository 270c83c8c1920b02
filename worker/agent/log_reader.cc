#include "worker/agent/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file_system.h"

namespace slipway::worker::agent {
namespace {

constexpr int kMaxRotatedFiles = 1000;  // the shim's own limit
constexpr size_t kBlock = 65536;

// Bytes of the last `lines` lines of the file; *lines becomes what earlier files still owe. A last line without its end
// counts as a line, in the newest file only.
off_t TailOffset(int fd, off_t size, bool newest, int64_t* lines) {
  std::string block;
  off_t end = size;
  bool skip_final_newline = newest;
  while (end > 0) {
    const auto length = static_cast<size_t>(std::min<off_t>(end, kBlock));
    block.resize(length);
    const ssize_t got = ::pread(fd, block.data(), length, end - static_cast<off_t>(length));
    if (got != static_cast<ssize_t>(length)) return 0;
    for (size_t i = length; i > 0; --i) {
      if (block[i - 1] != '\n') {
        skip_final_newline = false;
        continue;
      }
      if (std::exchange(skip_final_newline, false)) continue;
      if (--*lines == 0) return end - static_cast<off_t>(length) + static_cast<off_t>(i);
    }
    end -= static_cast<off_t>(length);
  }
  return 0;
}

}  // namespace

LogReader::LogReader(std::string path, int64_t tail_lines) : path_(std::move(path)) {
  if (tail_lines > 0) SeekToTail(tail_lines);
}

std::vector<std::string> LogReader::Paths() const {
  std::vector<std::string> paths;
  for (int i = 1; i < kMaxRotatedFiles && ::access(absl::StrCat(path_, ".", i).c_str(), F_OK) == 0; ++i) {
    paths.push_back(absl::StrCat(path_, ".", i));
  }
  std::reverse(paths.begin(), paths.end());
  if (::access(path_.c_str(), F_OK) == 0) paths.push_back(path_);
  return paths;
}

bool LogReader::OpenAt(const std::string& path, off_t offset) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return false;
  file_ = std::move(fd);
  inode_ = info.st_ino;
  offset_ = offset;
  return true;
}

void LogReader::SeekToTail(int64_t lines) {
  std::vector<std::string> paths = Paths();
  bool newest = true;
  while (!paths.empty()) {
    UniqueFd fd(::open(paths.back().c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info = {};
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return;
    const off_t offset = TailOffset(fd.get(), info.st_size, newest, &lines);
    OpenAt(paths.back(), offset);
    if (lines == 0) return;
    paths.pop_back();
    newest = false;
  }
}

bool LogReader::OpenNext() {
  const std::vector<std::string> paths = Paths();
  if (!file_.valid()) return !paths.empty() && OpenAt(paths.front(), 0);
  for (size_t i = 0; i < paths.size(); ++i) {
    struct stat info = {};
    if (::stat(paths[i].c_str(), &info) != 0 || info.st_ino != inode_) continue;
    return i + 1 < paths.size() && OpenAt(paths[i + 1], 0);
  }
  // Ours has been rotated away: go on with the oldest that is kept.
  return !paths.empty() && OpenAt(paths.front(), 0);
}

absl::StatusOr<std::string> LogReader::Read(size_t max_bytes) {
  std::string data(max_bytes, '\0');
  while (true) {
    if (file_.valid()) {
      const ssize_t n = ::pread(file_.get(), data.data(), data.size(), offset_);
      if (n < 0) return ErrnoToStatus(errno, absl::StrCat("reading ", path_));
      if (n > 0) {
        offset_ += n;
        data.resize(static_cast<size_t>(n));
        return data;
      }
    }
    if (!OpenNext()) return std::string();
  }
}

}  // namespace slipway::worker::agent
