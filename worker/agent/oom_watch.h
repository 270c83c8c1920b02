// Notices when the kernel kills processes for memory: such a death is a plain SIGKILL to everybody else. Reads the
// cgroup's memory.events where there is one, else /proc/vmstat. Not thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_OOM_WATCH_H_
#define SLIPWAY_WORKER_AGENT_OOM_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/clock.h"

namespace slipway::worker::agent {

class OomWatch {
 public:
  explicit OomWatch(const Clock& clock) : clock_(clock) {}
  // Call often.
  void Poll();
  // A process of this machine or container was killed for memory within the last seconds.
  bool Recently() const;

 private:
  const Clock& clock_;
  std::optional<int64_t> count_;
  absl::Duration last_rise_ = -absl::InfiniteDuration();
};

// The number behind "oom_kill " at the start of a line.
std::optional<int64_t> OomKillsIn(std::string_view text);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_OOM_WATCH_H_
