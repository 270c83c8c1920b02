#include "server/app/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace slipway::server::app {
namespace {

constexpr int kMaxCpuSlots = 1024;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string DefaultDataDir() {
  const std::string data_home = Environment("XDG_DATA_HOME");
  if (!data_home.empty()) return absl::StrCat(data_home, "/slipway");
  const std::string home = Environment("HOME");
  return absl::StrCat(home.empty() ? "/var/lib" : absl::StrCat(home, "/.local/share"), "/slipway");
}

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

// Sets `node`; returns what is wrong with the text, or nothing.
std::string ReadLocal(const std::string& text, std::optional<LocalNode>* node) {
  LocalNode local;
  local.gpus = text == "gpu";
  if (!local.gpus &&
      (!absl::SimpleAtoi(text, &local.cpu_slots) || local.cpu_slots < 1 || local.cpu_slots > kMaxCpuSlots)) {
    return absl::StrCat("--local ", text, ": must be `gpu` or a number of CPU slots from 1 to ", kMaxCpuSlots);
  }
  *node = local;
  return "";
}

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv) {
  Flags flags;
  std::string local;
  CLI::App app("Slipway's coordinator: takes jobs, places them on nodes and keeps what is known about them.",
               "slipwayd");
  app.set_version_flag("--version", std::string("slipwayd ") + SLIPWAY_VERSION);
  app.add_option("--data-dir", flags.data_dir,
                 "Where everything is kept (default: $XDG_DATA_HOME/slipway, else ~/.local/share/slipway)");
  app.add_option("--listen", flags.listen, "Address of the gRPC API; port 0 takes any free one")->capture_default_str();
  app.add_option("--http", flags.http, "Address of /metrics, /healthz and /readyz")->capture_default_str();
  app.add_option("--local", local, "Also run an agent here: with this many CPU slots, or with this machine's `gpu`s");
  app.add_option("--allow-root", flags.allow_roots,
                 "Directory that jobs may read and write; repeatable. With --local, the home directory, the working "
                 "directory and the data directory are allowed too");
  app.add_option("--output-root", flags.output_root,
                 "Jobs write to <this>/<project>/<job id> (default: <data dir>/jobs)");
  app.add_option("--agent-lease", flags.agent_lease_seconds, "Seconds that an agent goes on without word from here")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app.add_option("--worker-lease", flags.worker_lease_seconds, "Seconds that a worker goes on without its agent")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app.add_option("--metrics-mib", flags.metrics_mib,
                 "Disk for the history of metrics, in MiB; beyond it the oldest go. None is older than 30 days")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error, critical or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "critical", "off"}))
      ->capture_default_str();
  app.add_option("--log-file", flags.log_file, "Also log to this file (rotated)");
  ParsedFlags parsed;
  try {  // CLI11 reports by exceptions, --help included
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    parsed.exit_code = app.exit(error, out, err) == 0 ? 0 : 2;
    parsed.out = out.str();
    parsed.err = err.str();
    return parsed;
  }
  if (!local.empty()) {
    parsed.err = ReadLocal(local, &flags.local);
    if (!parsed.err.empty()) {
      parsed.err += "\n";
      parsed.exit_code = 2;
      return parsed;
    }
  }
  flags.data_dir = Absolute(flags.data_dir.empty() ? DefaultDataDir() : flags.data_dir);
  flags.output_root = flags.output_root.empty() ? absl::StrCat(flags.data_dir, "/jobs") : Absolute(flags.output_root);
  for (std::string& root : flags.allow_roots) root = Absolute(root);
  if (flags.local.has_value()) {
    const std::string home = Environment("HOME");
    if (!home.empty()) flags.allow_roots.push_back(Absolute(home));
    flags.allow_roots.push_back(Absolute("."));
    flags.allow_roots.push_back(flags.data_dir);
  }
  parsed.flags = std::move(flags);
  return parsed;
}

}  // namespace slipway::server::app
