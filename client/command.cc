#include "client/command.h"

#include <CLI/Validators.hpp>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "common/status_macros.h"

namespace slipway::client {

void Command::AddGlobalFlags(CLI::App* app) {
  app->add_option("--server", server_, "Address of slipwayd, host:port [SLIPWAY_SERVER, config file, 127.0.0.1:7670]")
      ->type_name("ADDRESS");
  app->add_option("-o,--output", output_, "table, json, yaml or name")
      ->check(CLI::IsMember({"table", "json", "yaml", "name"}))
      ->type_name("FORMAT");
  app->add_option("--request-timeout", timeout_seconds_, "Seconds to wait for an answer of the server")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  app->add_flag("--no-color", no_color_, "No colours [NO_COLOR]");
}

OutputFormat Command::format() const {
  if (output_ == "json") return OutputFormat::kJson;
  if (output_ == "yaml") return OutputFormat::kYaml;
  return output_ == "name" ? OutputFormat::kName : OutputFormat::kTable;
}

absl::StatusOr<std::unique_ptr<Connection>> Command::Connect() const {
  SLIPWAY_ASSIGN_OR_RETURN(std::string address, ServerAddress(server_, environment_));
  return std::make_unique<Connection>(ConnectionOptions{.address = std::move(address),
                                                        .timeout = absl::Seconds(timeout_seconds_),
                                                        .interrupted = environment_.interrupted});
}

void Command::Run(CLI::App* command, Action action) {
  command->callback([this, action = std::move(action)] { action_ = action; });
}

int Command::RunChosen() {
  const absl::StatusOr<int> result = action_();
  if (result.ok()) return *result;
  const bool colored = color(environment_.err_is_terminal);
  Say(absl::StrCat(colored ? "\x1b[31merror:\x1b[0m " : "error: ", result.status().message()));
  return ExitCodeOf(result.status());
}

void Command::Emit(const google::protobuf::Message& message, const std::string& table, const std::string& name) const {
  switch (format()) {
    case OutputFormat::kJson:
      return Print(ToJson(message));
    case OutputFormat::kYaml:
      return Print(ToYaml(message));
    case OutputFormat::kName:
      return Print(name);
    case OutputFormat::kTable:
      return Print(table);
  }
}

absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& reference) {
  v1::GetJobRequest request;
  request.set_job(reference);
  SLIPWAY_ASSIGN_OR_RETURN(v1::GetJobResponse response,
                           connection.Call(&v1::JobService::Stub::GetJob, connection.jobs(), request));
  return std::move(*response.mutable_job());
}

}  // namespace slipway::client
