// The agent's lease from the coordinator, on the monotonic clock: without word for so long, its workers must not live,
// because the coordinator then starts them elsewhere. Survives the agent's restarts in a small file. Not thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_COORDINATOR_LEASE_H_
#define SLIPWAY_WORKER_AGENT_COORDINATOR_LEASE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_system.h"

namespace slipway::worker::agent {

class CoordinatorLease {
 public:
  // `clock` and `files` must outlive it. With `orphan_timeout` (one machine, nobody else would start the job) the lease
  // is that long whatever the coordinator says, and workers have minutes for their checkpoint instead of seconds.
  CoordinatorLease(std::string path, std::optional<absl::Duration> orphan_timeout, const Clock& clock,
                   FileSystem& files);

  void SetDuration(absl::Duration duration);
  // The coordinator has spoken.
  void Renew();

  // Workers must save and leave.
  bool StopDue() const { return Silence() >= duration_; }
  // Workers must be dead.
  bool KillDue() const { return Silence() >= duration_ + stop_time_; }
  absl::Duration Silence() const { return clock_.MonotonicNow() - last_word_; }

 private:
  void Load();
  void Save();

  const std::string path_;
  const bool fixed_;
  const Clock& clock_;
  FileSystem& files_;
  absl::Duration duration_ = absl::Minutes(5);
  const absl::Duration stop_time_;
  absl::Duration last_word_;
  absl::Duration saved_at_ = -absl::InfiniteDuration();
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_COORDINATOR_LEASE_H_
