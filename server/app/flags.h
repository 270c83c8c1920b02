// slipwayd's command line.
#ifndef SLIPWAY_SERVER_APP_FLAGS_H_
#define SLIPWAY_SERVER_APP_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::server::app {

struct LocalNode {
  bool gpus = false;  // this machine's GPUs, else `cpu_slots`
  int cpu_slots = 0;
};

struct Flags {
  std::string data_dir;
  std::string listen = "127.0.0.1:7670";
  std::string http = "127.0.0.1:7671";
  std::optional<LocalNode> local;
  std::vector<std::string> allow_roots;
  std::string output_root;
  double agent_lease_seconds = 300;
  double worker_lease_seconds = 120;
  int64_t metrics_mib = 1024;
  std::string log_level = "info";
  std::string log_file;
};

// Either flags to run with, or what to print and the code to leave with (--help, --version, a mistake).
struct ParsedFlags {
  std::optional<Flags> flags;
  std::string out;
  std::string err;
  int exit_code = 0;
};
ParsedFlags ParseFlags(int argc, const char* const* argv);

}  // namespace slipway::server::app

#endif  // SLIPWAY_SERVER_APP_FLAGS_H_
