#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli.h"

extern char** environ;

namespace slipway::client {
namespace {

std::atomic<bool> interrupted{false};

// The first Ctrl-C ends a command in its own way, the second at once.
void OnInterrupt(int) {
  if (interrupted.exchange(true)) _exit(130);
}

int TerminalWidth() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A pipe without a reader is in error, whether or not anything was written to it.
bool ReaderGone() {
  pollfd out = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

absl::StatusOr<int> Exec(const std::vector<std::string>& argv) {
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  sigaction(SIGINT, &default_action, nullptr);
  sigaction(SIGPIPE, &default_action, nullptr);
  execv(pointers[0], pointers.data());
  return absl::NotFoundError(absl::StrCat("cannot run ", argv[0], ": ", std::strerror(errno)));
}

Environment RealEnvironment() {
  Environment env;
  env.out = &std::cout;
  env.err = &std::cerr;
  env.out_is_terminal = isatty(STDOUT_FILENO) != 0;
  env.err_is_terminal = isatty(STDERR_FILENO) != 0;
  env.terminal_width = TerminalWidth;
  std::error_code error;
  env.working_directory = std::filesystem::current_path(error).string();
  env.binary_directory = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env.variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  env.interrupted = [] { return interrupted.load(); };
  env.reader_gone = ReaderGone;
  env.exec = Exec;
  return env;
}

}  // namespace
}  // namespace slipway::client

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = slipway::client::OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a failed write is seen, and ends the command in its own way
  // gRPC's own log lines are not for users.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return slipway::client::RunCli(std::vector<std::string>(argv + 1, argv + argc), slipway::client::RealEnvironment());
}
