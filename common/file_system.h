// Files as an interface, so that a full disk, a failing one and a crash can be tested. Errors name the operation, the
// path and the system's text, with the code that ErrnoToStatus gives. Implementations are thread-safe; the objects they
// hand out are not, except MappedFile and RandomAccessFile, which are immutable.
#ifndef SLIPWAY_COMMON_FILE_SYSTEM_H_
#define SLIPWAY_COMMON_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace slipway {

// ENOENT -> NotFound, ENOSPC and EDQUOT -> ResourceExhausted, EACCES and EROFS -> PermissionDenied, EIO and ESTALE ->
// Unavailable, … The message is "<context>: <text of the errno>".
absl::Status ErrnoToStatus(int error, std::string_view context);

// "a" + "b" -> "a/b". An absolute `name` is not special: callers check names that come from outside.
std::string JoinPath(std::string_view directory, std::string_view name);
// "/a/b" -> "/a"; "b" -> "."; "/b" -> "/".
std::string DirName(std::string_view path);
// "/a/b" -> "b".
std::string BaseName(std::string_view path);

struct FileInfo {
  int64_t size = 0;
  bool is_directory = false;
  absl::Time modified;
};

class WritableFile {
 public:
  // Closes without syncing; an error then goes unseen, so call Close.
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::string_view data) = 0;
  // Data and size are on the disk when this returns OK.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// Reads at offsets without a mapping: a file that shrinks or a disk that fails is an error and never a SIGBUS.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual const std::string& path() const = 0;
  // The size when it was opened.
  virtual int64_t size() const = 0;
  // Fills all of `out`; OutOfRange when the range ends behind size(), DataLoss when the file has become shorter.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> out) const = 0;
};

// A read-only mapping, for data that is read all over and for ever (token files). Only for files that nobody shortens.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual const std::string& path() const = 0;
  virtual std::string_view data() const = 0;
};

// Held until destroyed; the system also drops it when the process dies in any way.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // Set when the lock file was there already: its holder died without releasing it. Holds the file's text (a pid, or
  // nothing). Worth a warning, not an error.
  virtual const std::optional<std::string>& left_over() const = 0;
};

enum class WriteMode { kTruncate, kAppend, kCreateNew };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path, WriteMode mode) = 0;
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) = 0;
  // Names (not paths) in the directory, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // Follows symbolic links.
  virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;
  virtual absl::Status MakeDirectories(const std::string& path) = 0;
  // Replaces `to` if it is a file or an empty directory.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  // OK when there is nothing. Does not follow symbolic links.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
  // Makes creations, renames and removals inside `directory` durable.
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
  // What an unprivileged process may still write to the file system that holds `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
  // Takes an exclusive lock and writes this process's pid into the file. FailedPrecondition naming the holder's pid and
  // the path while another process (or another lock object) holds it. A left-over file never stands in the way.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;

  absl::StatusOr<bool> Exists(const std::string& path);
  // ResourceExhausted when the file is larger than max_bytes: a guard against reading a mistaken path into memory.
  absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
  // Readers see the old contents or the new, also after a crash: temporary file, sync, rename, sync of the directory.
  // On an error the old file is untouched and the temporary one removed (as far as the disk lets us).
  absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);
};

}  // namespace slipway

#endif  // SLIPWAY_COMMON_FILE_SYSTEM_H_
