#include "common/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/unique_fd.h"

namespace slipway {
namespace {

absl::Status PosixError(std::string_view operation, std::string_view path) {
  const int error = errno;
  return ErrnoToStatus(error, StrCat(operation, " ", path));
}

template <typename Call>
auto RetryOnInterrupt(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(std::string_view data) override {
    while (!data.empty()) {
      const ssize_t written = RetryOnInterrupt([&] { return ::write(fd_.get(), data.data(), data.size()); });
      if (written < 0) return PosixError("writing", path_);
      data.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (RetryOnInterrupt([&] { return ::fsync(fd_.get()); }) != 0) return PosixError("syncing", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    // Linux frees the descriptor even when close fails, so there is no second try.
    if (::close(fd_.release()) != 0) return PosixError("closing", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  UniqueFd fd_;
};

class PosixRandomAccessFile final : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, UniqueFd fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  const std::string& path() const override { return path_; }
  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    const int64_t count = static_cast<int64_t>(out.size());
    if (offset < 0 || offset > size_ || count > size_ - offset) {
      return absl::OutOfRangeError(
          StrCat("reading ", path_, ": ", count, " bytes at ", offset, " do not fit in its ", size_, " bytes"));
    }
    for (int64_t done = 0; done < count;) {
      const ssize_t got = RetryOnInterrupt(
          [&] { return ::pread(fd_.get(), out.data() + done, static_cast<size_t>(count - done), offset + done); });
      if (got < 0) return PosixError("reading", path_);
      if (got == 0) {
        return absl::DataLossError(
            StrCat("reading ", path_, ": it ends at ", offset + done, " and had ", size_, " bytes when opened"));
      }
      done += got;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const UniqueFd fd_;
  const int64_t size_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(std::string path, void* address, size_t size)
      : path_(std::move(path)), address_(address), size_(size) {}
  PosixMappedFile(const PosixMappedFile&) = delete;
  PosixMappedFile& operator=(const PosixMappedFile&) = delete;
  ~PosixMappedFile() override {
    if (size_ > 0) ::munmap(address_, size_);
  }

  const std::string& path() const override { return path_; }
  std::string_view data() const override { return {static_cast<const char*>(address_), size_}; }

 private:
  const std::string path_;
  void* const address_;
  const size_t size_;
};

class PosixFileLock final : public FileLock {
 public:
  PosixFileLock(std::string path, UniqueFd fd, std::optional<std::string> left_over)
      : path_(std::move(path)), fd_(std::move(fd)), left_over_(std::move(left_over)) {}
  // The file goes while the lock is still held, so nobody can hold a lock on a name that another one has taken over
  // (Lock checks that the name still leads to the file it locked).
  ~PosixFileLock() override { ::unlink(path_.c_str()); }
  const std::optional<std::string>& left_over() const override { return left_over_; }

 private:
  const std::string path_;
  const UniqueFd fd_;
  const std::optional<std::string> left_over_;
};

struct OpenedFile {
  UniqueFd fd;
  int64_t size;
};

absl::StatusOr<OpenedFile> OpenRegular(const std::string& path) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang.
  UniqueFd fd(RetryOnInterrupt([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd.valid()) return PosixError("opening", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return PosixError("examining", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(StrCat("opening ", path, ": it is not a regular file"));
  }
  return OpenedFile{std::move(fd), static_cast<int64_t>(info.st_size)};
}

std::string ReadSmallText(int fd) {
  char buffer[64];
  const ssize_t got = ::pread(fd, buffer, sizeof(buffer), 0);
  std::string text(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> PosixFileSystem::OpenForWrite(const std::string& path, WriteMode mode) {
  int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
  if (mode == WriteMode::kTruncate) flags |= O_TRUNC;
  if (mode == WriteMode::kAppend) flags |= O_APPEND;
  if (mode == WriteMode::kCreateNew) flags |= O_EXCL;
  UniqueFd fd(RetryOnInterrupt([&] { return ::open(path.c_str(), flags, 0644); }));
  if (!fd.valid()) return PosixError("creating", path);
  return std::make_unique<PosixWritableFile>(path, std::move(fd));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> PosixFileSystem::OpenForRead(const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(OpenedFile file, OpenRegular(path));
  return std::make_unique<PosixRandomAccessFile>(path, std::move(file.fd), file.size);
}

absl::StatusOr<std::unique_ptr<MappedFile>> PosixFileSystem::Map(const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(OpenedFile file, OpenRegular(path));
  const size_t size = static_cast<size_t>(file.size);
  if (size == 0) return std::make_unique<PosixMappedFile>(path, nullptr, 0);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd.get(), 0);
  if (address == MAP_FAILED) return PosixError("mapping", path);
  return std::make_unique<PosixMappedFile>(path, address, size);
}

absl::StatusOr<std::vector<std::string>> PosixFileSystem::List(const std::string& directory) {
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
  if (stream == nullptr) return PosixError("listing", directory);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return PosixError("listing", directory);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<FileInfo> PosixFileSystem::Stat(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return PosixError("examining", path);
  return FileInfo{.size = static_cast<int64_t>(info.st_size),
                  .is_directory = S_ISDIR(info.st_mode),
                  .modified = absl::TimeFromTimespec(info.st_mtim)};
}

absl::Status PosixFileSystem::MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoToStatus(error.value(), StrCat("creating directory ", path));
  if (!std::filesystem::is_directory(path, error)) {
    return absl::FailedPreconditionError(StrCat("creating directory ", path, ": a file of that name is there"));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return PosixError(StrCat("renaming ", from, " to"), to);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return PosixError("removing", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoToStatus(error.value(), StrCat("removing ", path));
  return absl::OkStatus();
}

absl::Status PosixFileSystem::SyncDirectory(const std::string& directory) {
  UniqueFd fd(RetryOnInterrupt([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return PosixError("opening directory", directory);
  // Some network file systems cannot sync a directory and say EINVAL; their renames are synchronous.
  if (RetryOnInterrupt([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL) {
    return PosixError("syncing directory", directory);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PosixFileSystem::FreeBytes(const std::string& path) {
  struct statvfs info;
  if (RetryOnInterrupt([&] { return ::statvfs(path.c_str(), &info); }) != 0) return PosixError("free space of", path);
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t blocks = info.f_bavail, block_size = info.f_frsize;
  if (block_size != 0 && blocks > kMax / block_size) return static_cast<int64_t>(kMax);
  return static_cast<int64_t>(blocks * block_size);
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::Lock(const std::string& path) {
  // A holder that releases removes the file; whoever opened it just before then locks a file without a name and must
  // try again. More than a few rounds mean that something else is wrong.
  for (int round = 0; round < 100; ++round) {
    struct stat before;
    const bool existed = ::stat(path.c_str(), &before) == 0;
    UniqueFd fd(RetryOnInterrupt([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
    if (!fd.valid()) return PosixError("opening lock file", path);
    if (RetryOnInterrupt([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) != 0) {
      if (errno != EWOULDBLOCK) return PosixError("locking", path);
      const std::string holder = ReadSmallText(fd.get());
      return absl::FailedPreconditionError(StrCat("lock file ", path, " is held by ",
                                                  holder.empty() ? "a process that is starting" : "process ", holder,
                                                  ", which is still running"));
    }
    struct stat locked;
    struct stat named;
    if (::fstat(fd.get(), &locked) != 0) return PosixError("examining lock file", path);
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != locked.st_ino || named.st_dev != locked.st_dev) continue;

    std::optional<std::string> left_over;
    if (existed) left_over = ReadSmallText(fd.get());
    const std::string pid = StrCat(::getpid(), "\n");
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
      return PosixError("writing lock file", path);
    }
    return std::make_unique<PosixFileLock>(path, std::move(fd), std::move(left_over));
  }
  return absl::AbortedError(StrCat("lock file ", path, " is being taken and released all the time"));
}

}  // namespace slipway
