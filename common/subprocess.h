// Starting, watching and ending processes, and telling a process from a later one that got the same pid.
#ifndef SLIPWAY_COMMON_SUBPROCESS_H_
#define SLIPWAY_COMMON_SUBPROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slipway {

// A pid with the time its process started (clock ticks since boot, field 22 of /proc/<pid>/stat).
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

// NotFound when there is no such process. A zombie still has an identity.
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);
// False for a dead process, a zombie, and a pid that belongs to somebody else by now.
bool IsRunning(const ProcessIdentity& identity);
// NotFound when that very process is gone; never hits a process that reused the pid.
absl::Status SignalProcess(const ProcessIdentity& identity, int signal);

struct ExitStatus {
  bool signaled = false;
  int code = 0;  // exit code, or the signal's number
  bool core_dumped = false;

  bool success() const { return !signaled && code == 0; }
  // "exit code 3", "signal 9 (Killed)".
  std::string ToString() const;
};

struct PassedFd {
  int from = -1;  // here
  int to = -1;    // there, 3 or above
};

struct SpawnOptions {
  // argv[0] is the program's path; there is no search in PATH.
  std::vector<std::string> argv;
  // "NAME=value" entries; this process's environment when not set.
  std::optional<std::vector<std::string>> environment;
  // This process's own when empty.
  std::string working_directory;
  // Descriptors of this process. -1: /dev/null for stdin, this process's own for the others. All stay open here.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  // No other descriptor reaches the child, whether or not it has CLOEXEC.
  std::vector<PassedFd> passed_fds;
  // A new session: no terminal, no share in the terminal's Ctrl-C; the child leads a process group of its own.
  bool new_session = false;
  // Sent to the child when the *thread* that called Spawn ends, so call from a thread that lives as long as the child
  // should. 0: none.
  int parent_death_signal = 0;
};

// A child of this process. Not thread-safe. The destructor neither ends nor waits for the child.
class Subprocess {
 public:
  // An error says what failed (no such program, no such directory, …); no child is left then. The child starts with
  // default signal handlers and an empty signal mask.
  static absl::StatusOr<Subprocess> Spawn(const SpawnOptions& options);

  pid_t pid() const { return identity_.pid; }
  const ProcessIdentity& identity() const { return identity_; }

  // DeadlineExceeded while it still runs. After it ended, always the same answer.
  absl::StatusOr<ExitStatus> Wait(absl::Duration timeout = absl::InfiniteDuration());
  // OK also when it has ended already.
  absl::Status Signal(int signal);
  // The child and everything in its process group; only for children with new_session.
  absl::Status SignalGroup(int signal);

 private:
  Subprocess(ProcessIdentity identity, bool leads_group) : identity_(identity), leads_group_(leads_group) {}

  ProcessIdentity identity_;
  bool leads_group_;
  std::optional<ExitStatus> exit_;
};

}  // namespace slipway

#endif  // SLIPWAY_COMMON_SUBPROCESS_H_
