// What commands share: global flags, the connection, and how they print. A command is added to the tree by its
// Add…Commands function; its callback only stores an action, which runs once everything is parsed. Not thread-safe.
#ifndef SLIPWAY_CLIENT_COMMAND_H_
#define SLIPWAY_CLIENT_COMMAND_H_

#include <google/protobuf/message.h>

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/environment.h"
#include "client/format.h"
#include "slipway/v1/job.pb.h"

namespace slipway::client {

// Which values of `-o` a command can answer with; the others are refused.
enum class Outputs {
  kAll,
  kNoNames,   // all but name: there is nothing that has one
  kTextOnly,  // a script, a document
};

class Command {
 public:
  explicit Command(const Environment& env) : environment_(env) {}

  const Environment& env() const { return environment_; }
  // `-o`, `--server`, `--request-timeout`, `--no-color`.
  void AddGlobalFlags(CLI::App* app);
  // For a command that talks to a server or prints data.
  OutputFormat format() const;
  bool is_table() const { return format() == OutputFormat::kTable; }
  bool color(bool terminal) const { return terminal && !no_color_ && environment_.Variable("NO_COLOR").empty(); }

  absl::StatusOr<std::unique_ptr<Connection>> Connect() const;

  // A command's function: OK and what else it wants as exit code.
  using Action = std::function<absl::StatusOr<int>()>;
  // Makes `command` run `action` when it is chosen.
  void Run(CLI::App* command, Action action, Outputs outputs = Outputs::kAll);
  // Runs the chosen action and prints its error. The exit code.
  int RunChosen();
  // The exit code, given the command's own and whether its output reached its reader.
  int Finish(int code) const;

  // Data. What follows a failed write is lost: commands that go on for long stop at stopped().
  void Print(const std::string& text) const;
  // Ctrl-C, or what is printed reaches nobody. Only for the thread that prints.
  bool stopped() const { return environment_.interrupted() || environment_.reader_gone() || !*environment_.out; }
  // A line on stderr.
  void Say(const std::string& line) const { *environment_.err << line << "\n" << std::flush; }
  // The message in the chosen format.
  void Emit(const google::protobuf::Message& message, const std::string& table, const std::string& name) const;
  void EmitJson(const Json& json, const std::string& table, const std::string& name = "") const;
  // One of many pieces of data that come over time: a line of JSON, or a YAML document. Not for tables.
  void EmitPart(const Json& json) const;

 private:
  const Environment& environment_;
  std::string server_;
  std::string output_ = "table";
  double timeout_seconds_ = 20;
  bool no_color_ = false;
  Action action_;
  Outputs outputs_ = Outputs::kAll;
  mutable int write_errno_ = 0;  // of the first failed write
};

void AddJobCommands(CLI::App* app, Command* command);         // jobs …
void AddJobPlanCommand(CLI::App* jobs, Command* command);     // jobs plan
void AddJobStreamCommands(CLI::App* jobs, Command* command);  // jobs watch|wait|checkpoint
void AddJobLogCommand(CLI::App* jobs, Command* command);      // jobs logs
void AddClusterCommands(CLI::App* app, Command* command);     // checkpoints, nodes, version
void AddSpecCommands(CLI::App* app, Command* command);        // spec …
void AddDataCommands(CLI::App* app, Command* command);        // data …
void AddModelCommands(CLI::App* app, Command* command);       // model …, generate
void AddCompletionCommand(CLI::App* app, Command* command);

// The one job that `reference`, an id or a name, means.
absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& reference);

// A job's configuration as a job file, in YAML unless JSON is asked for.
void EmitSpec(const Command& command, const v1::TrainingSpec& spec, const std::string& name);

// Follows a job to its end, drawing or printing; the job's exit code, or kExitInterrupted after Ctrl-C.
absl::StatusOr<int> WatchToEnd(const Command& command, Connection& connection, const v1::Job& job, int64_t from_step);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_COMMAND_H_
