// The command line of slipway-agent.
#ifndef SLIPWAY_WORKER_AGENT_OPTIONS_H_
#define SLIPWAY_WORKER_AGENT_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace slipway::worker::agent {

struct AgentOptions {
  std::string coordinator;  // gRPC target: HOST:PORT or a URI such as unix:/run/slipway/slipwayd.sock
  std::string state_dir;
  int cpu_slots = 0;  // 0 with gpus unset: GPUs if there are any, else one CPU slot
  bool gpus = false;
  int threads_per_slot = 0;  // 0: the cores divided by the slots
  std::vector<std::string> roots;
  std::string metrics;  // HOST:PORT; empty: off
  std::string node_id;  // empty: kept in the state directory
  bool local = false;   // an agent of slipwayd --local: one machine, ends with its coordinator
  std::optional<absl::Duration> orphan_timeout;
  std::string rendezvous_ip;  // empty: the address that faces the coordinator
  absl::Duration preflight_timeout = absl::Minutes(10);
  std::string log_level = "info";
  std::string log_file;
  bool probe_gpus = false;  // print the GPUs and end: see gpu_inventory.h
};

// Nothing to run: the text was printed (help, version, or what is wrong) and this is the exit code (link::AgentExit).
struct ExitNow {
  int code = 0;
};

std::optional<ExitNow> ParseOptions(int argc, const char* const* argv, AgentOptions& options);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_OPTIONS_H_
