// The machine's own file system. Stateless: make one where it is needed.
#ifndef SLIPWAY_COMMON_POSIX_FILE_SYSTEM_H_
#define SLIPWAY_COMMON_POSIX_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <vector>

#include "common/file_system.h"

namespace slipway {

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path, WriteMode mode) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<MappedFile>> Map(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveTree(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
};

}  // namespace slipway

#endif  // SLIPWAY_COMMON_POSIX_FILE_SYSTEM_H_
