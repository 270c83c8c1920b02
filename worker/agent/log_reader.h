// Reads what a process printed, across the rotated files of its shim (path, path.1, …), from a point near the end and
// onward while it grows. Bytes come as they were printed. Not thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_LOG_READER_H_
#define SLIPWAY_WORKER_AGENT_LOG_READER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace slipway::worker::agent {

class LogReader {
 public:
  // Starts `tail_lines` lines before the end; 0: at the beginning of what is kept. A file that does not exist yet is
  // waited for.
  LogReader(std::string path, int64_t tail_lines);

  // At most max_bytes more; "" when there is nothing more now.
  absl::StatusOr<std::string> Read(size_t max_bytes);

 private:
  // The kept files, oldest first.
  std::vector<std::string> Paths() const;
  bool OpenAt(const std::string& path, off_t offset);
  void SeekToTail(int64_t lines);
  // The file that was begun after the one that is open; false while there is none.
  bool OpenNext();

  const std::string path_;
  UniqueFd file_;
  ino_t inode_ = 0;
  off_t offset_ = 0;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_LOG_READER_H_
