// spec explain, spec validate.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "common/status_macros.h"
#include "engine/spec/explain.h"
#include "engine/spec/resolve.h"

namespace slipway::client {

void AddSpecCommands(CLI::App* app, Command* command) {
  CLI::App* spec = app->add_subcommand("spec", "The configuration of jobs");
  spec->require_subcommand(1);

  const auto field = std::make_shared<std::string>();
  const auto markdown = std::make_shared<bool>(false);
  CLI::App* explain = spec->add_subcommand("explain", "What a field or a section means");
  CLI::Option* named = explain->add_option("field", *field, "section, section.key, or nothing for an overview");
  explain->add_flag("--markdown", *markdown, "All of it as Markdown (docs/configuration.md)")->excludes(named);
  command->Run(
      explain,
      [=]() -> absl::StatusOr<int> {
        if (*markdown) {
          if (!command->is_table()) return absl::InvalidArgumentError("--markdown: give no -o with it");
          command->Print(engine::spec::ConfigurationMarkdown());
          return kExitOk;
        }
        SLIPWAY_ASSIGN_OR_RETURN(const std::string text, engine::spec::Explain(*field));
        SLIPWAY_ASSIGN_OR_RETURN(const Json json, engine::spec::ExplainJson(*field));
        command->EmitJson(json, text);
        return kExitOk;
      },
      Outputs::kNoNames);

  struct Flags {
    std::string file;
    std::vector<std::string> overrides;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* validate = spec->add_subcommand("validate", "Check a job file; prints it with every default filled in");
  validate->add_option("-f,--file", flags->file, "Job file in YAML or JSON; - reads standard input")
      ->required()
      ->type_name("FILE");
  validate->add_option("--set", flags->overrides, "section.key=value; null resets a field")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  command->Run(validate, [=]() -> absl::StatusOr<int> {
    SLIPWAY_ASSIGN_OR_RETURN(const JobFile job, LoadJobFile(flags->file, flags->overrides, command->env()));
    SLIPWAY_RETURN_IF_ERROR(engine::spec::FaultsToStatus(job.faults, flags->file));
    EmitSpec(*command, engine::spec::Resolve(job.spec), absl::StrCat(job.spec.name(), "\n"));
    command->Say("valid");
    return kExitOk;
  });
}

}  // namespace slipway::client
