// slipway-shim --state-dir DIR [--log FILE] [--log-bytes N] [--log-files N] [--rendezvous-fd N] -- COMMAND ARGUMENT...
// Exit code 0 when the exit record was written, whatever became of the worker.
#include <CLI/CLI.hpp>
#include <string>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/shim/shim.h"

int main(int argc, char** argv) {
  slipway::worker::shim::ShimOptions options;
  CLI::App app{"Runs one Slipway worker: keeps its output, waits for its end and records it."};
  app.add_option("--state-dir", options.state_dir, "The rank's state directory")->required();
  app.add_option("--log", options.log_path,
                 "File for the worker's output (default: output.log in the state directory)");
  app.add_option("--log-bytes", options.log_file_bytes, "Size at which a new log file is begun")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
  app.add_option("--log-files", options.log_files, "Number of log files that are kept")->check(CLI::Range(1, 1000));
  app.add_option("--rendezvous-fd", options.rendezvous_fd, "Descriptor that the worker inherits");
  app.add_option("command", options.command, "The worker and its arguments, after --")->required();
  CLI11_PARSE(app, argc, argv);

  // Not SetUpLogging: its flushing thread would take signals that the shim waits for.
  spdlog::set_default_logger(spdlog::stderr_logger_st("slipway-shim"));
  if (const absl::Status status = slipway::worker::shim::RunShim(options); !status.ok()) {
    spdlog::error("{}", status.ToString());
    return 1;
  }
  return 0;
}
