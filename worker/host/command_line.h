// What the model commands share on the command line. Internal to this folder.
#ifndef SLIPWAY_WORKER_HOST_COMMAND_LINE_H_
#define SLIPWAY_WORKER_HOST_COMMAND_LINE_H_

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {

void AddComputeFlags(CLI::App& app, ComputeOptions& options);
// `-o`: how the answer is printed, as in `slipway`.
void AddOutputFlag(CLI::App& app, std::string& output);
// The answer as a text, as JSON or YAML, or as the name of what was made.
void PrintAnswer(const std::string& output, const nlohmann::ordered_json& json, const std::string& text,
                 const std::string& name, std::ostream& out);

// The exit code of `slipway` for it, with the error on stderr.
int Report(const absl::Status& status);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_COMMAND_LINE_H_
