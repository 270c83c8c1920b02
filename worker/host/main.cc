// slipway-worker: everything of Slipway that computes. The agent starts `run` and `preflight`; `slipway` starts the
// others.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "worker/host/model_commands.h"
#include "worker/host/preflight_command.h"
#include "worker/host/run_command.h"

namespace {

using namespace slipway::worker::host;  // NOLINT(google-build-using-namespace): the commands of this binary

int Dispatch(CLI::App& app, int argc, char** argv) {
  std::string launch_file;
  int result = 2;
  CLI::App* run = app.add_subcommand("run", "One rank of an attempt, started by its shim");
  run->add_option("--launch", launch_file, "The launch file")->required();
  run->callback([&] { result = RunCommand(launch_file); });
  CLI::App* preflight = app.add_subcommand("preflight", "Opens and checks all that a job needs, started by the agent");
  preflight->add_option("--launch", launch_file, "The launch file")->required();
  preflight->callback([&] { result = PreflightCommand(launch_file); });
  GenerateOptions generate_options;
  CLI::App* generate = app.add_subcommand("generate", "Continues a text, or answers a chat message");
  AddGenerateFlags(*generate, generate_options);
  generate->callback([&] { result = GenerateCommand(generate_options); });
  ExportOptions export_options;
  CLI::App* export_model = app.add_subcommand("export", "Writes a checkpoint as a Hugging Face directory");
  AddExportFlags(*export_model, export_options);
  export_model->callback([&] { result = ExportCommand(export_options); });
  EvalOptions eval_options;
  CLI::App* eval = app.add_subcommand("eval", "Loss of a model over a chat file or a text");
  AddEvalFlags(*eval, eval_options);
  eval->callback([&] { result = EvalCommand(eval_options); });
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // wrong arguments, whatever is wrong with them
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Slipway's worker: trains, checks, exports and generates");
  app.set_version_flag("--version", SLIPWAY_VERSION);
  const int result = Dispatch(app, argc, argv);
  spdlog::shutdown();
  std::cout.flush();
  // Not exit(): the destructors of a broken process group wait for its peers.
  ::_exit(result);
}
