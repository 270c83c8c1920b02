#include "worker/shim/log_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::worker::shim {
namespace {

// A disk that has failed is not asked again for each line.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

}  // namespace

void LogWriter::Write(std::string_view data) {
  const absl::Duration now = clock_.MonotonicNow();
  while (!data.empty() && now >= next_attempt_) {
    absl::Status status = EnsureOpen();
    if (status.ok() && dropped_unnoted_ > 0) status = WriteNote();
    const auto room = static_cast<size_t>(std::max<int64_t>(options_.max_file_bytes - size_, 1));
    const std::string_view part = data.substr(0, room);
    if (status.ok()) status = file_->Append(part);
    if (status.ok()) {
      size_ += static_cast<int64_t>(part.size());
      data.remove_prefix(part.size());
    } else {
      file_.reset();  // opened anew: its directory may have been replaced, and its size is uncertain
      next_attempt_ = now + kRetryAfter;
    }
  }
  dropped_total_ += static_cast<int64_t>(data.size());
  dropped_unnoted_ += static_cast<int64_t>(data.size());
}

absl::Status LogWriter::EnsureOpen() {
  if (file_ != nullptr && size_ < options_.max_file_bytes) return absl::OkStatus();
  if (file_ != nullptr) {
    file_.reset();
    SLIPWAY_RETURN_IF_ERROR(Rotate());
  }
  SLIPWAY_RETURN_IF_ERROR(files_.MakeDirectories(DirName(options_.path)));
  SLIPWAY_ASSIGN_OR_RETURN(file_, files_.OpenForWrite(options_.path, WriteMode::kAppend));
  SLIPWAY_ASSIGN_OR_RETURN(const FileInfo info, files_.Stat(options_.path));
  size_ = info.size;
  return absl::OkStatus();
}

absl::Status LogWriter::Rotate() {
  for (int i = options_.max_files - 1; i >= 1; --i) {
    const std::string from = i == 1 ? options_.path : absl::StrCat(options_.path, ".", i - 1);
    const absl::Status status = files_.Rename(from, absl::StrCat(options_.path, ".", i));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  if (options_.max_files == 1) return files_.RemoveFile(options_.path);
  return absl::OkStatus();
}

absl::Status LogWriter::WriteNote() {
  const std::string note = absl::StrCat("\n[slipway-shim: ", dropped_unnoted_,
                                        " bytes of output are missing here: no write was possible]\n");
  SLIPWAY_RETURN_IF_ERROR(file_->Append(note));
  size_ += static_cast<int64_t>(note.size());
  dropped_unnoted_ = 0;
  return absl::OkStatus();
}

}  // namespace slipway::worker::shim
