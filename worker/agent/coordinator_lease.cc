#include "worker/agent/coordinator_lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace slipway::worker::agent {
namespace {

// Below the margin that the coordinator adds to the lease before it starts the job elsewhere.
constexpr absl::Duration kStopTime = absl::Seconds(10);
constexpr absl::Duration kOrphanStopTime = absl::Minutes(5);
constexpr absl::Duration kSaveInterval = absl::Seconds(10);

}  // namespace

CoordinatorLease::CoordinatorLease(std::string path, std::optional<absl::Duration> orphan_timeout, const Clock& clock,
                                   FileSystem& files)
    : path_(std::move(path)),
      fixed_(orphan_timeout.has_value()),
      clock_(clock),
      files_(files),
      stop_time_(fixed_ ? kOrphanStopTime : kStopTime),
      last_word_(clock.MonotonicNow()) {
  if (fixed_) {
    duration_ = *orphan_timeout;
  } else {
    Load();
  }
}

void CoordinatorLease::SetDuration(absl::Duration duration) {
  if (!fixed_ && duration > absl::ZeroDuration()) duration_ = duration;
}

void CoordinatorLease::Renew() {
  last_word_ = clock_.MonotonicNow();
  if (!fixed_ && last_word_ - saved_at_ >= std::min(kSaveInterval, duration_ / 10)) Save();
}

// "<monotonic nanoseconds of the last word> <lease in nanoseconds>". A number from before the machine's last start lies
// in the future, or is as old as the machine is up: there are no workers to care for then.
void CoordinatorLease::Load() {
  const std::string text = files_.ReadFile(path_).value_or("");
  const size_t space = text.find(' ');
  int64_t last_word = 0, duration = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &last_word) ||
      !absl::SimpleAtoi(text.substr(space + 1), &duration)) {
    return;
  }
  last_word_ = std::min(last_word_, absl::Nanoseconds(last_word));
  SetDuration(absl::Nanoseconds(duration));
}

void CoordinatorLease::Save() {
  saved_at_ = last_word_;
  const std::string text = absl::StrCat(absl::ToInt64Nanoseconds(last_word_), " ", absl::ToInt64Nanoseconds(duration_));
  if (const absl::Status status = files_.WriteFileAtomically(path_, text); !status.ok()) {
    spdlog::warn("{}", status.ToString());
  }
}

}  // namespace slipway::worker::agent
