#include "worker/host/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "common/exit_code.h"
#include "common/flag_range.h"
#include "engine/spec/yaml_writer.h"

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
      ->check(WholeNumberIn(0, 65536))
      ->type_name("N");
}

void AddOutputFlag(CLI::App& app, std::string& output) {
  app.add_option("-o,--output", output, "text, json, yaml or name")
      ->check(CLI::IsMember({"text", "json", "yaml", "name"}))
      ->type_name("FORMAT");
}

void PrintAnswer(const std::string& output, const nlohmann::ordered_json& json, const std::string& text,
                 const std::string& name, std::ostream& out) {
  if (output == "json") {
    out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
  } else if (output == "yaml") {
    out << engine::spec::JsonToYaml(json) << std::flush;
  } else {
    out << (output == "name" ? name : text) << std::endl;
  }
}

int Report(const absl::Status& status) {
  if (!status.ok()) std::cerr << "error: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

}  // namespace slipway::worker::host
