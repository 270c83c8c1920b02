#include "worker/agent/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/link/agent_exit.h"

namespace slipway::worker::agent {
namespace {

constexpr char kDefaultMetrics[] = "127.0.0.1:7672";
constexpr absl::Duration kDefaultOrphanTimeout = absl::Minutes(1);

// "90", "90s", "5m".
std::optional<absl::Duration> ParseSeconds(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds < 1e9) return absl::Seconds(seconds);
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration) && duration > absl::ZeroDuration()) return duration;
  return std::nullopt;
}

std::string CheckDuration(const std::string& text) {
  return ParseSeconds(text).has_value() ? "" : absl::StrCat("\"", text, "\" is not a time such as 90, 90s or 5m");
}

std::string CheckAbsolute(const std::string& path) {
  return !path.empty() && path.front() == '/' ? "" : absl::StrCat("\"", path, "\" is not an absolute path");
}

// Home, working directory and the state directory's parent: what one person on one machine expects to work.
std::vector<std::string> LocalRoots(const std::string& state_dir) {
  std::vector<std::string> roots;
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') roots.emplace_back(home);
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (!error) roots.push_back(here);
  roots.push_back(std::filesystem::path(state_dir).parent_path());
  return roots;
}

}  // namespace

std::optional<ExitNow> ParseOptions(int argc, const char* const* argv, AgentOptions& options) {
  CLI::App app{"Runs a node's share of Slipway's jobs: starts workers, watches them and reports to the coordinator."};
  app.set_version_flag("--version", SLIPWAY_VERSION);
  std::string orphan_timeout, preflight_timeout;
  app.add_option("--coordinator", options.coordinator, "Address of slipwayd: HOST:PORT, or a gRPC URI (unix:/path)");
  app.add_option("--state-dir", options.state_dir, "Directory for what must survive this process");
  auto* cpu = app.add_option("--slots-cpu", options.cpu_slots, "Offer N CPU slots")->check(CLI::Range(1, 4096));
  app.add_flag("--gpus", options.gpus, "Offer the GPUs of this machine (CUDA_VISIBLE_DEVICES is respected)")
      ->excludes(cpu);
  app.add_option("--threads-per-slot", options.threads_per_slot, "CPU threads of a rank (default: cores / slots)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--root", options.roots, "Directory below which jobs may read and write; repeat for more")
      ->check(CheckAbsolute);
  auto* metrics = app.add_option("--metrics", options.metrics, "HOST:PORT for Prometheus, or \"off\"");
  app.add_option("--node-id", options.node_id, "Name of this node (default: made once and kept)");
  app.add_flag("--local", options.local, "Belong to `slipwayd --local`: stop workers on SIGTERM and as an orphan");
  app.add_option("--orphan-timeout", orphan_timeout,
                 "Without the coordinator for this long, stop workers with a checkpoint and end (--local: 1m)")
      ->check(CheckDuration);
  app.add_option("--rendezvous-address", options.rendezvous_ip,
                 "Numeric address on which ranks meet (default: the one that faces the coordinator)");
  app.add_option("--preflight-timeout", preflight_timeout, "Time for the check before a job (default: 10m)")
      ->check(CheckDuration);
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error or off");
  app.add_option("--log-file", options.log_file, "Also log to this file");
  app.add_flag("--probe-gpus", options.probe_gpus)->group("");
  try {
    app.parse(argc, argv);
    if (options.probe_gpus) return std::nullopt;
    if (options.coordinator.empty()) throw CLI::RequiredError("--coordinator");
    if (options.state_dir.empty()) throw CLI::RequiredError("--state-dir");
    if (const std::string fault = CheckAbsolute(options.state_dir); !fault.empty()) {
      throw CLI::ValidationError("--state-dir", fault);
    }
    if (options.roots.empty() && !options.local) throw CLI::RequiredError("--root");
  } catch (const CLI::ParseError& error) {
    return ExitNow{app.exit(error) == 0 ? link::kAgentExitOk : link::kAgentExitUsage};
  }
  if (!orphan_timeout.empty()) options.orphan_timeout = ParseSeconds(orphan_timeout);
  if (options.local && !options.orphan_timeout.has_value()) options.orphan_timeout = kDefaultOrphanTimeout;
  if (!preflight_timeout.empty()) options.preflight_timeout = *ParseSeconds(preflight_timeout);
  if (metrics->empty() && !options.local) options.metrics = kDefaultMetrics;
  if (options.metrics == "off") options.metrics.clear();
  if (options.roots.empty()) options.roots = LocalRoots(options.state_dir);
  return std::nullopt;
}

}  // namespace slipway::worker::agent
