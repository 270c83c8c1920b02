#include "common/file_system.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway {

absl::Status ErrnoToStatus(int error, std::string_view context) {
  const std::string message = StrCat(context, ": ", std::generic_category().message(error));
  switch (error) {
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EIO:
    case ESTALE:
      return absl::UnavailableError(message);
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), message);
  }
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  while (directory.size() > 1 && directory.back() == '/') directory.remove_suffix(1);
  while (!name.empty() && name.front() == '/') name.remove_prefix(1);
  return directory == "/" ? StrCat("/", name) : StrCat(directory, "/", name);
}

std::string DirName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string BaseName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

absl::StatusOr<bool> FileSystem::Exists(const std::string& path) {
  absl::StatusOr<FileInfo> info = Stat(path);
  if (info.ok()) return true;
  if (absl::IsNotFound(info.status())) return false;
  return info.status();
}

absl::StatusOr<std::string> FileSystem::ReadFile(const std::string& path, int64_t max_bytes) {
  SLIPWAY_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, OpenForRead(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(
        StrCat(path, " has ", file->size(), " bytes; at most ", max_bytes, " are expected"));
  }
  std::string contents(static_cast<size_t>(file->size()), '\0');
  SLIPWAY_RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(contents.data()), contents.size())));
  return contents;
}

absl::Status FileSystem::WriteFileAtomically(const std::string& path, std::string_view contents) {
  // Unique per process and call, so that two writers of one path never share a temporary file.
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = StrCat(path, ".tmp-", ::getpid(), "-", counter.fetch_add(1));
  const auto write = [&]() -> absl::Status {
    SLIPWAY_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, OpenForWrite(temporary, WriteMode::kTruncate));
    SLIPWAY_RETURN_IF_ERROR(file->Append(contents));
    SLIPWAY_RETURN_IF_ERROR(file->Sync());
    SLIPWAY_RETURN_IF_ERROR(file->Close());
    return Rename(temporary, path);
  };
  if (absl::Status status = write(); !status.ok()) {
    // The write's error is the one to report; the leftover is harmless if this fails as well.
    RemoveFile(temporary).IgnoreError();
    return status;
  }
  return SyncDirectory(DirName(path));
}

}  // namespace slipway
