#include "client/cli.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "common/text.h"

namespace slipway::client {
namespace {

std::vector<std::string> NamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

// What to say when a word is no command; empty when all are. Words after a flag may be its value and are not looked at.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& argument : arguments) {
    const std::vector<std::string> names = NamesOf(*at);
    if (argument.empty() || argument[0] == '-' || names.empty()) return "";
    if (std::find(names.begin(), names.end(), argument) == names.end()) {
      const auto nearest = NearestKey(argument, names);
      return absl::StrCat("there is no command `", argument, "`; ",
                          nearest ? absl::StrCat("did you mean `", *nearest, "`?")
                                  : absl::StrCat("there are ", absl::StrJoin(names, ", ")));
    }
    at = at->get_subcommand(argument);
  }
  return "";
}

}  // namespace

int RunCli(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app("Slipway trains language models: submit jobs to a slipwayd, watch and steer them, prepare data.",
               "slipway");
  app.footer(absl::StrCat("\n", ExitCodeHelp()));
  app.fallthrough();
  app.require_subcommand(1);
  Command command(environment);
  command.AddGlobalFlags(&app);
  AddJobCommands(&app, &command);
  AddClusterCommands(&app, &command);
  AddSpecCommands(&app, &command);
  AddDataCommands(&app, &command);
  AddModelCommands(&app, &command);
  AddCompletionCommand(&app, &command);

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return command.Finish(app.exit(error, *environment.out, *environment.err));
    if (const std::string unknown = UnknownCommand(app, arguments); !unknown.empty()) {
      command.Say(absl::StrCat("error: ", unknown));
    } else {
      app.exit(error, *environment.err, *environment.err);
    }
    return kExitUsage;
  }
  return command.RunChosen();
}

}  // namespace slipway::client
