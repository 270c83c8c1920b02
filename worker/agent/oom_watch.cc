#include "worker/agent/oom_watch.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"

namespace slipway::worker::agent {
namespace {

// A large process takes this long to die and to be noticed.
constexpr absl::Duration kRecent = absl::Seconds(10);

std::optional<int64_t> ReadCount() {
  // Inside a container its own cgroup is the root; the root of a whole machine has no memory.events.
  for (const char* path : {"/sys/fs/cgroup/memory.events", "/proc/vmstat"}) {
    // Not a stream: those throw when a read fails, for example because the cgroup is being removed.
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
    std::string text(16384, '\0');
    text.resize(file == nullptr ? 0 : std::fread(text.data(), 1, text.size(), file.get()));
    if (const std::optional<int64_t> count = OomKillsIn(text)) return count;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> OomKillsIn(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  size_t at = text.find(kName);
  while (at != std::string_view::npos && at != 0 && text[at - 1] != '\n') at = text.find(kName, at + 1);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + kName.size());
  int64_t count = 0;
  if (!absl::SimpleAtoi(std::string(rest.substr(0, rest.find('\n'))), &count)) return std::nullopt;
  return count;
}

void OomWatch::Poll() {
  const std::optional<int64_t> count = ReadCount();
  if (count.has_value() && count_.has_value() && *count > *count_) last_rise_ = clock_.MonotonicNow();
  count_ = count;
}

bool OomWatch::Recently() const { return clock_.MonotonicNow() - last_rise_ < kRecent; }

}  // namespace slipway::worker::agent
