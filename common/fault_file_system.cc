#include "common/fault_file_system.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway {

class FaultFileSystem::File final : public WritableFile {
 public:
  File(FaultFileSystem& owner, std::string path, std::unique_ptr<WritableFile> base, int64_t size)
      : owner_(owner), path_(std::move(path)), base_(std::move(base)), size_(size) {}

  absl::Status Append(std::string_view data) override {
    owner_.WaitWhileHeld(path_);
    int64_t allowed = static_cast<int64_t>(data.size());
    const absl::Status fault = owner_.Begin("writing", path_, &allowed);
    if (allowed > 0) {
      SLIPWAY_RETURN_IF_ERROR(base_->Append(data.substr(0, static_cast<size_t>(allowed))));
      absl::MutexLock lock(&owner_.mutex_);
      owner_.unsynced_.try_emplace(path_, size_);
      size_ += allowed;
    }
    return fault;
  }

  absl::Status Sync() override {
    SLIPWAY_RETURN_IF_ERROR(owner_.Begin("syncing", path_));
    SLIPWAY_RETURN_IF_ERROR(base_->Sync());
    absl::MutexLock lock(&owner_.mutex_);
    owner_.unsynced_.erase(path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    SLIPWAY_RETURN_IF_ERROR(owner_.Begin("closing", path_));
    return base_->Close();
  }

 private:
  FaultFileSystem& owner_;
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
  int64_t size_;
};

void FaultFileSystem::FailAt(int64_t nth, FaultKind kind) {
  absl::MutexLock lock(&mutex_);
  fail_at_ = operations_ + nth;
  kind_ = kind;
}

void FaultFileSystem::SetFreeBytes(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_bytes_ = bytes;
}

void FaultFileSystem::FailReadsOf(std::string path_part) {
  absl::MutexLock lock(&mutex_);
  unreadable_ = std::move(path_part);
}

void FaultFileSystem::HoldWritesOf(std::string path_part) {
  absl::MutexLock lock(&mutex_);
  held_ = std::move(path_part);
}

void FaultFileSystem::ReleaseWrites() { HoldWritesOf(""); }

void FaultFileSystem::AwaitHeldWrite() const {
  const auto is_held = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_writes_ > 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&is_held));
}

void FaultFileSystem::WaitWhileHeld(const std::string& path) {
  const auto may_go = [this, &path]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return held_.empty() || !absl::StrContains(path, held_);
  };
  absl::MutexLock lock(&mutex_);
  if (may_go()) return;
  ++held_writes_;
  mutex_.Await(absl::Condition(&may_go));
  --held_writes_;
}

int64_t FaultFileSystem::operations() const {
  absl::MutexLock lock(&mutex_);
  return operations_;
}

bool FaultFileSystem::crashed() const {
  absl::MutexLock lock(&mutex_);
  return crashed_;
}

absl::Status FaultFileSystem::Begin(std::string_view operation, const std::string& path, int64_t* allowed) {
  int64_t unused = 0;
  if (allowed == nullptr) allowed = &unused;
  const std::string context = StrCat(operation, " ", path);
  absl::MutexLock lock(&mutex_);
  const int64_t wanted = *allowed;
  *allowed = 0;
  if (crashed_) return absl::AbortedError(StrCat(context, ": the process has crashed"));
  ++operations_;
  if (operations_ == fail_at_) {
    switch (kind_) {
      case FaultKind::kNoSpace:
        return ErrnoToStatus(ENOSPC, context);
      case FaultKind::kIoError:
        return ErrnoToStatus(EIO, context);
      case FaultKind::kShortWrite:
        *allowed = wanted / 2;
        return ErrnoToStatus(ENOSPC, context);
      case FaultKind::kPowerLoss:
        LosePower();
        [[fallthrough]];
      case FaultKind::kCrash:
        crashed_ = true;
        return absl::AbortedError(StrCat(context, ": the process has crashed"));
    }
  }
  *allowed = wanted;
  if (free_bytes_.has_value()) {
    *allowed = std::min(wanted, *free_bytes_);
    *free_bytes_ -= *allowed;
    if (*allowed < wanted) return ErrnoToStatus(ENOSPC, context);
  }
  return absl::OkStatus();
}

absl::Status FaultFileSystem::CheckReadable(std::string_view operation, const std::string& path) const {
  absl::MutexLock lock(&mutex_);
  if (crashed_) return absl::AbortedError(StrCat(operation, " ", path, ": the process has crashed"));
  if (!unreadable_.empty() && absl::StrContains(path, unreadable_)) {
    return ErrnoToStatus(EIO, StrCat(operation, " ", path));
  }
  return absl::OkStatus();
}

void FaultFileSystem::LosePower() {
  // Errors are ignored: a file that is gone already has nothing to lose.
  for (const auto& [path, length] : unsynced_) {
    absl::StatusOr<std::string> contents = base_.ReadFile(path);
    if (!contents.ok()) continue;
    contents->resize(std::min(contents->size(), static_cast<size_t>(length)));
    absl::StatusOr<std::unique_ptr<WritableFile>> file = base_.OpenForWrite(path, WriteMode::kTruncate);
    if (file.ok()) (*file)->Append(*contents).IgnoreError();
  }
  for (auto rename = renames_.rbegin(); rename != renames_.rend(); ++rename) {
    base_.Rename(rename->to, rename->from).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::OpenForWrite(const std::string& path, WriteMode mode) {
  SLIPWAY_RETURN_IF_ERROR(Begin("creating", path));
  int64_t size = 0;
  if (mode == WriteMode::kAppend) {
    if (absl::StatusOr<FileInfo> info = base_.Stat(path); info.ok()) size = info->size;
  }
  SLIPWAY_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_.OpenForWrite(path, mode));
  return std::make_unique<File>(*this, path, std::move(file), size);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultFileSystem::OpenForRead(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("opening", path));
  return base_.OpenForRead(path);
}

absl::StatusOr<std::unique_ptr<MappedFile>> FaultFileSystem::Map(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("mapping", path));
  return base_.Map(path);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& directory) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("listing", directory));
  return base_.List(directory);
}

absl::StatusOr<FileInfo> FaultFileSystem::Stat(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("examining", path));
  return base_.Stat(path);
}

absl::Status FaultFileSystem::MakeDirectories(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(Begin("creating directory", path));
  return base_.MakeDirectories(path);
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  SLIPWAY_RETURN_IF_ERROR(Begin("renaming", from));
  // What a rename replaced cannot be brought back, and a disk may keep either; only fresh names are undone.
  const bool fresh = absl::IsNotFound(base_.Stat(to).status());
  SLIPWAY_RETURN_IF_ERROR(base_.Rename(from, to));
  absl::MutexLock lock(&mutex_);
  if (fresh) renames_.push_back({from, to});
  std::map<std::string, int64_t> moved;
  for (const auto& [path, length] : unsynced_) {
    const bool inside = path == from || absl::StartsWith(path, from + "/");
    moved[inside ? to + path.substr(from.size()) : path] = length;
  }
  unsynced_ = std::move(moved);
  return absl::OkStatus();
}

absl::Status FaultFileSystem::RemoveFile(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(Begin("removing", path));
  return base_.RemoveFile(path);
}

absl::Status FaultFileSystem::RemoveTree(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(Begin("removing", path));
  return base_.RemoveTree(path);
}

absl::Status FaultFileSystem::SyncDirectory(const std::string& directory) {
  SLIPWAY_RETURN_IF_ERROR(Begin("syncing directory", directory));
  SLIPWAY_RETURN_IF_ERROR(base_.SyncDirectory(directory));
  absl::MutexLock lock(&mutex_);
  std::erase_if(renames_, [&](const PendingRename& rename) { return DirName(rename.to) == directory; });
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FaultFileSystem::FreeBytes(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("free space of", path));
  {
    absl::MutexLock lock(&mutex_);
    if (free_bytes_.has_value()) return *free_bytes_;
  }
  return base_.FreeBytes(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFileSystem::Lock(const std::string& path) {
  SLIPWAY_RETURN_IF_ERROR(CheckReadable("locking", path));
  return base_.Lock(path);
}

}  // namespace slipway
