// A file system for tests that fails on demand: full disks, I/O errors, torn writes, crashes and power losses at the
// nth changing operation, and disks that hang. Thread-safe. Wraps another one, which must outlive it.
#ifndef SLIPWAY_COMMON_FAULT_FILE_SYSTEM_H_
#define SLIPWAY_COMMON_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/file_system.h"

namespace slipway {

enum class FaultKind {
  kNoSpace,     // ENOSPC, nothing done
  kIoError,     // EIO, nothing done
  kShortWrite,  // half of an Append is written, then ENOSPC; other operations fail like kNoSpace
  kCrash,       // the process dies before the operation: what was done stays, nothing works any more
  kPowerLoss,   // the machine dies: bytes not synced and renames whose directory was not synced are lost as well
};

class FaultFileSystem final : public FileSystem {
 public:
  explicit FaultFileSystem(FileSystem& base) : base_(base) {}

  // The nth changing operation from now on (1 is the next one) fails in this way; later ones work again, except after
  // kCrash and kPowerLoss. Changing are: OpenForWrite, Append, Sync, Close, MakeDirectories, Rename, RemoveFile,
  // RemoveTree and SyncDirectory.
  void FailAt(int64_t nth, FaultKind kind);
  // Appends beyond this many bytes fail with ENOSPC after writing what fits; FreeBytes tells the rest.
  void SetFreeBytes(int64_t bytes);
  // Every read of a path that contains this text fails with EIO.
  void FailReadsOf(std::string path_part);
  // Appends to a path that contains this text wait until ReleaseWrites.
  void HoldWritesOf(std::string path_part);
  void ReleaseWrites();
  // Until an Append waits.
  void AwaitHeldWrite() const;
  // Changing operations so far.
  int64_t operations() const;
  // True after kCrash or kPowerLoss.
  bool crashed() const;

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

 private:
  class File;
  struct PendingRename {
    std::string from, to;
  };

  // Counts a changing operation. *allowed starts as the bytes the operation wants to write and comes back as how many
  // may be written before the returned error shows.
  absl::Status Begin(std::string_view operation, const std::string& path, int64_t* allowed = nullptr);
  absl::Status CheckReadable(std::string_view operation, const std::string& path) const;
  void LosePower() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitWhileHeld(const std::string& path);

  FileSystem& base_;
  mutable absl::Mutex mutex_;
  int64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t fail_at_ ABSL_GUARDED_BY(mutex_) = 0;
  FaultKind kind_ ABSL_GUARDED_BY(mutex_) = FaultKind::kIoError;
  bool crashed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<int64_t> free_bytes_ ABSL_GUARDED_BY(mutex_);
  std::string unreadable_ ABSL_GUARDED_BY(mutex_);
  std::string held_ ABSL_GUARDED_BY(mutex_);
  int held_writes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Files with bytes that no Sync has reached: path -> length that a power loss leaves.
  std::map<std::string, int64_t> unsynced_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingRename> renames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway

#endif  // SLIPWAY_COMMON_FAULT_FILE_SYSTEM_H_
