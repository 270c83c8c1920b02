#include "client/command.h"

#include <CLI/Validators.hpp>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "common/flag_range.h"
#include "common/status_macros.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/yaml_writer.h"

namespace slipway::client {

void Command::AddGlobalFlags(CLI::App* app) {
  app->add_option("--server", server_, "Address of slipwayd, host:port [SLIPWAY_SERVER, config file, 127.0.0.1:7670]")
      ->type_name("ADDRESS");
  app->add_option("-o,--output", output_, "table, json, yaml or name")
      ->check(CLI::IsMember({"table", "json", "yaml", "name"}))
      ->type_name("FORMAT");
  app->add_option("--request-timeout", timeout_seconds_, "Seconds to wait for an answer of the server")
      ->check(NumberIn({.min = 0, .max = 86400, .exclusive_min = true}))
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
  return std::make_unique<Connection>(ConnectionOptions{
      .address = std::move(address), .timeout = absl::Seconds(timeout_seconds_), .interrupted = [&env = environment_] {
        return env.interrupted() || env.reader_gone();
      }});
}

void Command::Run(CLI::App* command, Action action, Outputs outputs) {
  command->callback([this, action = std::move(action), outputs] {
    action_ = action;
    outputs_ = outputs;
  });
}

int Command::RunChosen() {
  absl::StatusOr<int> result = 0;
  if (outputs_ == Outputs::kTextOnly && !is_table()) {
    result = absl::InvalidArgumentError(absl::StrCat("-o ", output_, ": this command only prints text"));
  } else if (outputs_ == Outputs::kNoNames && format() == OutputFormat::kName) {
    result = absl::InvalidArgumentError("-o name: this command has no names to print; expected table, json or yaml");
  } else {
    result = action_();
  }
  // Who left does not want to hear why the command stopped.
  const bool stopped = result.ok() ? *result == kExitInterrupted : absl::IsCancelled(result.status());
  if (stopped && !environment_.interrupted()) {
    if (environment_.reader_gone()) return kExitReaderGone;
    if (!*environment_.out) return Finish(kExitError);
  }
  if (result.ok()) return Finish(*result);
  const bool colored = color(environment_.err_is_terminal);
  Say(absl::StrCat(colored ? "\x1b[31merror:\x1b[0m " : "error: ", result.status().message()));
  return ExitCodeOf(result.status());
}

int Command::Finish(int code) const {
  if (*environment_.out) return code;
  if (environment_.reader_gone()) return kExitReaderGone;
  Say(absl::StrCat("error: cannot write to standard output: ",
                   write_errno_ == 0 ? "write failed" : std::strerror(write_errno_)));
  return kExitError;
}

void Command::Print(const std::string& text) const {
  if (!*environment_.out) return;
  errno = 0;
  *environment_.out << text << std::flush;
  if (!*environment_.out) write_errno_ = errno;
}

void Command::Emit(const google::protobuf::Message& message, const std::string& table, const std::string& name) const {
  EmitJson(format() == OutputFormat::kYaml ? ToJsonWithPlainSpecs(message) : ToJson(message), table, name);
}

void Command::EmitJson(const Json& json, const std::string& table, const std::string& name) const {
  switch (format()) {
    case OutputFormat::kJson:
      return Print(JsonText(json));
    case OutputFormat::kYaml:
      return Print(engine::spec::JsonToYaml(json));
    case OutputFormat::kName:
      return Print(name);
    case OutputFormat::kTable:
      return Print(table);
  }
}

void Command::EmitPart(const Json& json) const {
  Print(format() == OutputFormat::kJson ? JsonLine(json) : absl::StrCat("---\n", engine::spec::JsonToYaml(json)));
}

absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& reference) {
  v1::GetJobRequest request;
  request.set_job(reference);
  SLIPWAY_ASSIGN_OR_RETURN(v1::GetJobResponse response,
                           connection.Call(&v1::JobService::Stub::GetJob, connection.jobs(), request));
  return std::move(*response.mutable_job());
}

void EmitSpec(const Command& command, const v1::TrainingSpec& spec, const std::string& name) {
  command.Print(command.format() == OutputFormat::kName   ? name
                : command.format() == OutputFormat::kJson ? engine::spec::SpecToJson(spec)
                                                          : engine::spec::SpecToYaml(spec));
}

}  // namespace slipway::client
