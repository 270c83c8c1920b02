#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"

namespace slipway {
namespace {

struct ProcessState {
  ProcessIdentity identity;
  char state = '?';
};

absl::StatusOr<ProcessState> ReadProcessState(pid_t pid) {
  const std::string path = StrCat("/proc/", pid, "/stat");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return ErrnoToStatus(errno, StrCat("process ", pid));
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  // The process ended between open and read (ESRCH).
  if (text.empty()) return absl::NotFoundError(StrCat("process ", pid, " is gone"));

  // "pid (name) state …": the name may hold spaces and parentheses, so count from the last one. Field 3 is the state
  // and field 22 the start time (man 5 proc).
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return absl::InternalError(StrCat(path, " has an unknown form: ", text));
  const std::vector<std::string> fields = absl::StrSplit(text.substr(after_name + 1), ' ', absl::SkipEmpty());
  ProcessState result;
  result.identity.pid = pid;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &result.identity.start_ticks)) {
    return absl::InternalError(StrCat(path, " has an unknown form: ", text));
  }
  result.state = fields[0][0];
  return result;
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  SLIPWAY_ASSIGN_OR_RETURN(const ProcessState state, ReadProcessState(pid));
  return state.identity;
}

bool IsRunning(const ProcessIdentity& identity) {
  const absl::StatusOr<ProcessState> now = ReadProcessState(identity.pid);
  return now.ok() && now->identity == identity && now->state != 'Z' && now->state != 'X';
}

absl::Status SignalProcess(const ProcessIdentity& identity, int signal) {
  const auto gone = [&] { return absl::NotFoundError(StrCat("process ", identity.pid, " is gone")); };
  if (identity.pid <= 1) return absl::InvalidArgumentError(StrCat("refusing to signal pid ", identity.pid));
  // The pidfd pins the process: once its start time is known to match, the signal cannot go elsewhere.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, identity.pid, 0)));
  const bool pinned = pidfd.valid();
  if (!pinned && errno == ESRCH) return gone();
  if (!IsRunning(identity)) return gone();
  const long result = pinned ? ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0)
                             : ::kill(identity.pid, signal);  // a kernel without pidfds: the best there is
  if (result == 0) return absl::OkStatus();
  if (errno == ESRCH) return gone();
  return ErrnoToStatus(errno, StrCat("sending signal ", signal, " to process ", identity.pid));
}

}  // namespace slipway
