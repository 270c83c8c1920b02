// slipwayd: Slipway's coordinator.
#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "common/logging.h"
#include "server/app/daemon.h"
#include "server/app/flags.h"
#include "spdlog/spdlog.h"

namespace slipway::server::app {
namespace {

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// True when SIGTERM or SIGINT came within the time.
bool WaitForSignal(const sigset_t& signals, long milliseconds) {
  const timespec timeout = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  return sigtimedwait(&signals, nullptr, &timeout) > 0;
}

std::string BinaryDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

int Run(const Flags& flags) {
  const absl::Status logging = SetUpLogging(
      {.program = "slipwayd", .stderr_level = flags.log_level, .file = flags.log_file, .file_level = flags.log_level});
  if (!logging.ok()) {
    std::cerr << "slipwayd: " << logging.message() << "\n";
    return 1;
  }
  auto daemon = Daemon::Start(flags, BinaryDirectory());
  if (!daemon.ok()) {
    spdlog::critical("{}", std::string(daemon.status().message()));
    return 1;
  }
  std::cout << "slipwayd " << SLIPWAY_VERSION << " serves gRPC on " << (*daemon)->grpc_address() << ", HTTP on "
            << (*daemon)->http_address() << ", data in " << flags.data_dir << std::endl;
  const sigset_t signals = EndSignals();
  while (!WaitForSignal(signals, 250)) {
    if (const absl::Status status = (*daemon)->Supervise(); !status.ok()) {
      spdlog::critical("{}", std::string(status.message()));
      (*daemon)->Stop([] { return 2; });  // nothing of its jobs runs here
      return 1;
    }
  }
  spdlog::info("shutting down{}", flags.local.has_value() ? ": jobs save a checkpoint first; once more to hurry" : "");
  int more = 0;
  (*daemon)->Stop([&] {
    if (WaitForSignal(signals, 0)) ++more;
    return more;
  });
  spdlog::info("done");
  return 0;
}

}  // namespace
}  // namespace slipway::server::app

int main(int argc, char** argv) {
  const slipway::server::app::ParsedFlags parsed = slipway::server::app::ParseFlags(argc, argv);
  std::cout << parsed.out;
  std::cerr << parsed.err;
  if (!parsed.flags.has_value()) return parsed.exit_code;
  // gRPC's own log lines are not for users; what it could not do is said by whoever asked it to.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Before any thread starts, so that all of them leave these to main.
  const sigset_t signals = slipway::server::app::EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return slipway::server::app::Run(*parsed.flags);
}
