#include "common/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "common/file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/unique_fd.h"

extern char** environ;

namespace slipway {
namespace {

// What the child failed at before exec; it travels with errno through a pipe.
enum class ChildStep : int { kParentGone, kSession, kDirectory, kDescriptors, kExec };

struct ChildFailure {
  ChildStep step;
  int error;
};

// All that the child needs, made before fork: between fork and exec only async-signal-safe calls are allowed, because
// another thread may have held the allocator's lock.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* working_directory = nullptr;
  std::vector<PassedFd> descriptors;  // sources lie above every target
  int report_fd = -1;
  pid_t parent = 0;
  bool new_session = false;
  int parent_death_signal = 0;
};

[[noreturn]] void FailInChild(const ChildPlan& plan, ChildStep step) {
  const ChildFailure failure{step, errno};
  // Nothing can be done if this fails too; the parent then sees a plain exit.
  [[maybe_unused]] const ssize_t written = ::write(plan.report_fd, &failure, sizeof(failure));
  ::_exit(127);
}

// Every descriptor from 3 up gets CLOEXEC; the passed ones are cleared afterwards by dup2.
void MarkAllCloseOnExec() {
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  struct rlimit limit;
  const rlim_t end = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min<rlim_t>(limit.rlim_cur, 65536) : 65536;
  for (rlim_t fd = 3; fd < end; ++fd) ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.parent_death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, plan.parent_death_signal);
    if (::getppid() != plan.parent) FailInChild(plan, ChildStep::kParentGone);  // it died before prctl
  }
  if (plan.new_session && ::setsid() < 0) FailInChild(plan, ChildStep::kSession);
  if (plan.working_directory != nullptr && ::chdir(plan.working_directory) != 0) {
    FailInChild(plan, ChildStep::kDirectory);
  }
  MarkAllCloseOnExec();
  for (const PassedFd& fd : plan.descriptors) {
    if (::dup2(fd.from, fd.to) < 0) FailInChild(plan, ChildStep::kDescriptors);
  }
  ::execve(plan.argv[0], plan.argv.data(), plan.environment.data());
  FailInChild(plan, ChildStep::kExec);
}

std::vector<char*> CStrings(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));  // execve never writes
  pointers.push_back(nullptr);
  return pointers;
}

// Copies of the sources above every target, so that no dup2 overwrites a source that is still needed.
absl::Status PlanDescriptors(const SpawnOptions& options, ChildPlan* plan, std::vector<UniqueFd>* copies) {
  std::vector<PassedFd> wanted = options.passed_fds;
  UniqueFd null;
  int stdin_fd = options.stdin_fd;
  if (stdin_fd < 0) {
    null.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null.valid()) return ErrnoToStatus(errno, "opening /dev/null");
    stdin_fd = null.get();
  }
  int lowest = 3;
  for (const PassedFd& fd : wanted) {
    if (fd.to < 3) return absl::InvalidArgumentError(StrCat("descriptor ", fd.to, " cannot be passed: 3 is the first"));
    lowest = std::max(lowest, fd.to + 1);
  }
  wanted.push_back({stdin_fd, 0});
  if (options.stdout_fd >= 0) wanted.push_back({options.stdout_fd, 1});
  if (options.stderr_fd >= 0) wanted.push_back({options.stderr_fd, 2});
  for (const PassedFd& fd : wanted) {
    copies->emplace_back(::fcntl(fd.from, F_DUPFD_CLOEXEC, lowest));
    if (!copies->back().valid()) return ErrnoToStatus(errno, StrCat("passing descriptor ", fd.from));
    plan->descriptors.push_back({copies->back().get(), fd.to});
  }
  // The pipe for the child's failure must lie above the targets too.
  UniqueFd report(::fcntl(plan->report_fd, F_DUPFD_CLOEXEC, lowest));
  if (!report.valid()) return ErrnoToStatus(errno, "making a pipe");
  plan->report_fd = report.get();
  copies->push_back(std::move(report));
  return absl::OkStatus();
}

absl::Status DescribeFailure(const ChildFailure& failure, const SpawnOptions& options) {
  const std::string context = StrCat("starting ", options.argv[0], ": ");
  switch (failure.step) {
    case ChildStep::kParentGone:
      return absl::AbortedError(context + "this process is ending");
    case ChildStep::kSession:
      return ErrnoToStatus(failure.error, context + "making a session");
    case ChildStep::kDirectory:
      return ErrnoToStatus(failure.error, StrCat(context, "working directory ", options.working_directory));
    case ChildStep::kDescriptors:
      return ErrnoToStatus(failure.error, context + "passing descriptors");
    case ChildStep::kExec:
      return ErrnoToStatus(failure.error, StrCat("starting ", options.argv[0]));
  }
  return absl::InternalError(context + "unknown failure");
}

pid_t WaitPid(pid_t pid, int* status, int flags) {
  pid_t result;
  do {
    result = ::waitpid(pid, status, flags);
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (!signaled) return StrCat("exit code ", code);
  const char* name = ::strsignal(code);
  return StrCat("signal ", code, " (", name == nullptr ? "unknown" : name, ")", core_dumped ? ", core dumped" : "");
}

absl::StatusOr<Subprocess> Subprocess::Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("a process needs a program to run");
  ChildPlan plan;
  plan.argv = CStrings(options.argv);
  if (options.environment.has_value()) {
    plan.environment = CStrings(*options.environment);
  } else {
    for (char** entry = environ; *entry != nullptr; ++entry) plan.environment.push_back(*entry);
    plan.environment.push_back(nullptr);
  }
  if (!options.working_directory.empty()) plan.working_directory = options.working_directory.c_str();
  plan.new_session = options.new_session;
  plan.parent_death_signal = options.parent_death_signal;
  plan.parent = ::getpid();

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoToStatus(errno, "making a pipe");
  const UniqueFd report_read(pipe_fds[0]);
  UniqueFd report_write(pipe_fds[1]);
  plan.report_fd = report_write.get();
  std::vector<UniqueFd> copies;
  SLIPWAY_RETURN_IF_ERROR(PlanDescriptors(options, &plan, &copies));

  // No handler of ours may run in the child before it has reset them.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) RunChild(plan);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return ErrnoToStatus(fork_error, StrCat("starting ", options.argv[0]));

  report_write.reset();
  copies.clear();
  ChildFailure failure;
  ssize_t got;
  do {
    got = ::read(report_read.get(), &failure, sizeof(failure));  // end of file once exec has closed the other end
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(failure)) {
    int unused;
    WaitPid(pid, &unused, 0);
    return DescribeFailure(failure, options);
  }
  // It cannot be reaped yet, so even a child that has ended can be identified.
  SLIPWAY_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentifyProcess(pid));
  return Subprocess(identity, options.new_session);
}

absl::StatusOr<ExitStatus> Subprocess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration nap = absl::Milliseconds(1);
  while (!exit_.has_value()) {
    int status = 0;
    const pid_t result = WaitPid(identity_.pid, &status, timeout == absl::InfiniteDuration() ? 0 : WNOHANG);
    if (result < 0) return ErrnoToStatus(errno, StrCat("waiting for process ", identity_.pid));
    if (result == identity_.pid) {
      exit_ = WIFSIGNALED(status)
                  ? ExitStatus{.signaled = true, .code = WTERMSIG(status), .core_dumped = WCOREDUMP(status) != 0}
                  : ExitStatus{.signaled = false, .code = WEXITSTATUS(status)};
      break;
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(StrCat("process ", identity_.pid, " still runs"));
    }
    absl::SleepFor(std::min(nap, left));
    nap = std::min(nap * 2, absl::Milliseconds(20));
  }
  return *exit_;
}

absl::Status Subprocess::Signal(int signal) {
  // Not reaped, so the pid is still ours.
  if (exit_.has_value() || ::kill(identity_.pid, signal) == 0 || errno == ESRCH) return absl::OkStatus();
  return ErrnoToStatus(errno, StrCat("sending signal ", signal, " to process ", identity_.pid));
}

absl::Status Subprocess::SignalGroup(int signal) {
  if (!leads_group_) {
    return absl::FailedPreconditionError(StrCat("process ", identity_.pid, " has no process group of its own"));
  }
  if (::kill(-identity_.pid, signal) == 0 || errno == ESRCH) return absl::OkStatus();
  return ErrnoToStatus(errno, StrCat("sending signal ", signal, " to process group ", identity_.pid));
}

}  // namespace slipway
