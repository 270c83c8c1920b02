// For tests that start processes: where our binaries are, waiting for a condition, and finding what was left running.
#ifndef SLIPWAY_TESTS_SUPPORT_PROCESSES_H_
#define SLIPWAY_TESTS_SUPPORT_PROCESSES_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace slipway::testing {

// The build's bin directory: $SLIPWAY_BIN_DIR, else where the test itself lies.
inline std::string BinaryPath(const std::string& name) {
  if (const char* directory = std::getenv("SLIPWAY_BIN_DIR"); directory != nullptr) {
    return std::string(directory) + "/" + name;
  }
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

// True as soon as the condition holds; false after a deadline that only a fault reaches.
inline bool Eventually(const std::function<bool()>& condition, absl::Duration deadline = absl::Seconds(30)) {
  const absl::Time end = absl::Now() + deadline;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// Command lines of living processes that mention `text`, for example a test's own directory. Zombies have none.
inline std::vector<std::string> ProcessesMentioning(const std::string& text) {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string pid = entry->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(::getpid())) continue;
    // Not a stream: those throw when the process ends while its file is read.
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen((entry->path() / "cmdline").c_str(), "re"),
                                                     &std::fclose);
    std::string line(65536, '\0');
    line.resize(file == nullptr ? 0 : std::fread(line.data(), 1, line.size(), file.get()));
    for (char& c : line) c = c == '\0' ? ' ' : c;
    if (line.find(text) != std::string::npos) found.push_back(pid + ": " + line);
  }
  return found;
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_PROCESSES_H_
