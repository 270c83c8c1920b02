#include "worker/shim/shim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"
#include "slipway/worker/v1/worker.pb.h"
#include "spdlog/spdlog.h"
#include "worker/link/rank_files.h"
#include "worker/shim/log_writer.h"

namespace slipway::worker::shim {
namespace {

using ::slipway::worker::v1::ExitRecord;

// An agent that looks whether anybody serves the directory holds the lock for a moment.
constexpr absl::Duration kLockTimeout = absl::Seconds(5);
// What the dead worker's pipe may still take to drain: descendants that outlive their kill could hold it open.
constexpr absl::Duration kDrainTimeout = absl::Seconds(5);
// How long a full disk may keep the exit record back.
constexpr absl::Duration kRecordTimeout = absl::Seconds(30);
constexpr absl::Duration kRetry = absl::Milliseconds(100);

absl::StatusOr<std::unique_ptr<FileLock>> TakeLock(FileSystem& files, const std::string& path) {
  const absl::Time deadline = absl::Now() + kLockTimeout;
  while (true) {
    absl::StatusOr<std::unique_ptr<FileLock>> lock = files.Lock(path);
    if (lock.ok() || !absl::IsFailedPrecondition(lock.status()) || absl::Now() > deadline) return lock;
    absl::SleepFor(kRetry);
  }
}

// Processes whose parent we are (proc(5)).
std::vector<pid_t> Children() {
  const std::string path = absl::StrCat("/proc/self/task/", ::getpid(), "/children");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::vector<pid_t> children;
  pid_t child = 0;
  while (file != nullptr && std::fscanf(file.get(), "%d", &child) == 1) children.push_back(child);
  return children;
}

class Shim {
 public:
  explicit Shim(const ShimOptions& options)
      : options_(options),
        log_({.path = options.log_path.empty() ? JoinPath(options.state_dir, "output.log") : options.log_path,
              .max_file_bytes = options.log_file_bytes,
              .max_files = options.log_files},
             files_, clock_) {}

  absl::Status Run();

 private:
  absl::Status TakeSignals();
  absl::StatusOr<Subprocess> StartWorker();
  // Drains output and passes signals on until the worker has ended.
  ExitStatus Serve(Subprocess& worker);
  void PassSignals(Subprocess& worker);
  // False at the end of the output.
  bool DrainSome();
  // Buries orphans of the worker that were handed to us, but not the worker: its exit status is wanted.
  void ReapOthers(pid_t worker);
  void EndDescendants(Subprocess& worker);
  void DrainRest();
  absl::Status RefuseUsedDirectory();
  absl::Status Record(ExitRecord record);

  const ShimOptions& options_;
  PosixFileSystem files_;
  RealClock clock_;
  LogWriter log_;
  UniqueFd signals_;
  UniqueFd output_;
};

absl::Status Shim::TakeSignals() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoToStatus(errno, "making a signalfd");
  // Processes that the worker leaves behind become ours, so that we can end them.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::setsid();  // fails when this process leads a session already, which is as good
  return absl::OkStatus();
}

absl::StatusOr<Subprocess> Shim::StartWorker() {
  std::array<int, 2> pipe_fds;
  if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0) return ErrnoToStatus(errno, "making a pipe for the worker's output");
  output_.reset(pipe_fds[0]);
  const UniqueFd worker_end(pipe_fds[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  SpawnOptions spawn{.argv = options_.command,
                     .stdout_fd = worker_end.get(),
                     .stderr_fd = worker_end.get(),
                     .new_session = true,
                     .parent_death_signal = SIGKILL};
  if (options_.rendezvous_fd >= 0) spawn.passed_fds = {{options_.rendezvous_fd, options_.rendezvous_fd}};
  absl::StatusOr<Subprocess> worker = Subprocess::Spawn(spawn);
  // A listening socket that nobody serves makes clients hang; from here only the worker has it.
  if (options_.rendezvous_fd >= 0) ::close(options_.rendezvous_fd);
  return worker;
}

bool Shim::DrainSome() {
  std::array<char, 65536> chunk;
  while (true) {
    const ssize_t n = ::read(output_.get(), chunk.data(), chunk.size());
    if (n > 0) {
      log_.Write(std::string_view(chunk.data(), static_cast<size_t>(n)));
      if (static_cast<size_t>(n) < chunk.size()) return true;  // let signals have their turn
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return n < 0 && errno == EAGAIN;
    }
  }
}

void Shim::PassSignals(Subprocess& worker) {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    // SIGCHLD only wakes the loop; a terminal's signals are none of the worker's business.
    if (info.ssi_signo != SIGTERM) continue;
    if (const absl::Status status = worker.SignalGroup(SIGTERM); !status.ok()) spdlog::warn("{}", status.ToString());
  }
}

void Shim::ReapOthers(pid_t worker) {
  siginfo_t info = {};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && info.si_pid != worker) {
    ::waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

ExitStatus Shim::Serve(Subprocess& worker) {
  bool output_open = true;
  while (true) {
    std::array<pollfd, 2> fds = {
        {{.fd = signals_.get(), .events = POLLIN}, {.fd = output_open ? output_.get() : -1, .events = POLLIN}}};
    ::poll(fds.data(), fds.size(), 1000);
    if (output_open && fds[1].revents != 0) output_open = DrainSome();
    PassSignals(worker);
    ReapOthers(worker.pid());
    const absl::StatusOr<ExitStatus> ended = worker.Wait(absl::ZeroDuration());
    if (ended.ok()) return *ended;
    // No child to wait for cannot be: nobody else reaps it.
    if (!absl::IsDeadlineExceeded(ended.status())) return ExitStatus{.signaled = false, .code = 255};
  }
}

// What the worker started and left: its process group, and whatever moved out of it and became our child.
void Shim::EndDescendants(Subprocess& worker) {
  if (const absl::Status status = worker.SignalGroup(SIGKILL); !status.ok()) spdlog::warn("{}", status.ToString());
  const absl::Time deadline = absl::Now() + kDrainTimeout;
  while (absl::Now() < deadline) {
    ReapOthers(/*worker=*/0);
    const std::vector<pid_t> children = Children();
    if (children.empty()) return;
    for (const pid_t child : children) ::kill(child, SIGKILL);
    absl::SleepFor(absl::Milliseconds(10));
  }
}

void Shim::DrainRest() {
  const absl::Time deadline = absl::Now() + kDrainTimeout;
  while (DrainSome()) {
    pollfd fd = {.fd = output_.get(), .events = POLLIN};
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return;
    ::poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

absl::Status Shim::Record(ExitRecord record) {
  const absl::StatusOr<slipway::worker::v1::WorkerOutcome> outcome = link::ReadOutcome(files_, options_.state_dir);
  if (outcome.ok()) {
    record.set_outcome(outcome->outcome());
    *record.mutable_cause() = outcome->cause();
  } else if (!absl::IsNotFound(outcome.status())) {
    spdlog::warn("the worker's outcome is lost: {}", outcome.status().ToString());
  }
  const absl::Time deadline = absl::Now() + kRecordTimeout;
  while (true) {
    const absl::Status status = link::WriteExitRecord(files_, options_.state_dir, record);
    if (status.ok() || absl::Now() > deadline) return status;
    absl::SleepFor(kRetry);
  }
}

absl::Status Shim::RefuseUsedDirectory() {
  for (const std::string_view name : {link::kExitFile, link::kShimFile}) {
    const std::string path = JoinPath(options_.state_dir, name);
    SLIPWAY_ASSIGN_OR_RETURN(const bool exists, files_.Exists(path));
    if (exists) {
      return absl::FailedPreconditionError(absl::StrCat(path, " exists: a worker has run in this directory already"));
    }
  }
  return absl::OkStatus();
}

absl::Status Shim::Run() {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                           TakeLock(files_, JoinPath(options_.state_dir, link::kShimLockFile)));
  SLIPWAY_RETURN_IF_ERROR(RefuseUsedDirectory());
  SLIPWAY_RETURN_IF_ERROR(TakeSignals());
  SLIPWAY_ASSIGN_OR_RETURN(const ProcessIdentity self, IdentifyProcess(::getpid()));

  ExitRecord record;
  absl::StatusOr<Subprocess> worker = StartWorker();
  absl::Status started = worker.status();
  if (worker.ok()) {
    // Without this record the next agent could not find the worker; better no worker at all.
    started = link::WriteShimRecord(files_, options_.state_dir, {.shim = self, .worker = worker->identity()});
    if (!started.ok()) (void)worker->SignalGroup(SIGKILL);
    const ExitStatus status = Serve(*worker);
    record.set_pid(worker->pid());
    record.set_unix_time_nanos(absl::ToUnixNanos(clock_.WallNow()));
    record.set_exited(!status.signaled);
    record.set_signalled(status.signaled);
    if (status.signaled) {
      record.set_signal(status.code);
    } else {
      record.set_exit_code(status.code);
    }
    record.set_core_dumped(status.core_dumped);
    EndDescendants(*worker);
    DrainRest();
  } else {
    record.set_unix_time_nanos(absl::ToUnixNanos(clock_.WallNow()));
  }
  if (!started.ok()) {
    record.set_spawn_failed(true);
    record.set_spawn_error(std::string(started.message()));
  }
  return Record(std::move(record));
}

}  // namespace

absl::Status RunShim(const ShimOptions& options) { return Shim(options).Run(); }

}  // namespace slipway::worker::shim
