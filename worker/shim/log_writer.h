// A process's output in files, byte for byte, with an upper limit on the space. Never blocks for long and never fails:
// what cannot be written is counted, and the count is noted in the log as soon as it can be written again.
// Not thread-safe.
#ifndef SLIPWAY_WORKER_SHIM_LOG_WRITER_H_
#define SLIPWAY_WORKER_SHIM_LOG_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_system.h"

namespace slipway::worker::shim {

// `path` is the newest file, path.1 the one before it, and so on.
class LogWriter {
 public:
  struct Options {
    std::string path;
    int64_t max_file_bytes = int64_t{64} << 20;
    int max_files = 4;  // with the newest
  };
  // Makes the directory when it is missing. Appends to a file that is there.
  LogWriter(Options options, FileSystem& files, const Clock& clock)
      : options_(std::move(options)), files_(files), clock_(clock) {}

  void Write(std::string_view data);
  // Bytes that are in no file (at most: some of a write that failed may be).
  int64_t dropped_bytes() const { return dropped_total_; }

 private:
  absl::Status EnsureOpen();
  absl::Status Rotate();
  absl::Status WriteNote();

  const Options options_;
  FileSystem& files_;
  const Clock& clock_;
  std::unique_ptr<WritableFile> file_;
  int64_t size_ = 0;
  int64_t dropped_total_ = 0;
  int64_t dropped_unnoted_ = 0;
  absl::Duration next_attempt_ = -absl::InfiniteDuration();
};

}  // namespace slipway::worker::shim

#endif  // SLIPWAY_WORKER_SHIM_LOG_WRITER_H_
