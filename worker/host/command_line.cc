#include "worker/host/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace slipway::worker::host {

void AddComputeFlags(CLI::App& app, ComputeOptions& options) {
  app.add_option("--model", options.model, "Hugging Face directory or a step-… directory of a checkpoint")
      ->required()
      ->type_name("DIR");
  app.add_option("--device", options.device, "cpu or cuda:N")->capture_default_str()->type_name("DEVICE");
  app.add_option("--compute-dtype", options.dtype, "Type to compute in [float32 on CPU, bfloat16 on CUDA]")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->type_name("TYPE");
  app.add_option("--threads", options.threads, "CPU threads [all cores]")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "error: " << status.message() << std::endl;
  return 1;
}

}  // namespace slipway::worker::host
