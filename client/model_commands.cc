// model inspect|export|eval, generate. What computes is done by slipway-worker, found beside this program.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/model_report.h"
#include "common/flag_range.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"

namespace slipway::client {
namespace {

absl::StatusOr<int> RunWorker(const Command& command, std::vector<std::string> arguments) {
  const std::string worker = JoinPath(command.env().binary_directory, "slipway-worker");
  PosixFileSystem files;
  if (!files.Stat(worker).ok()) {
    return absl::NotFoundError(
        absl::StrCat(worker, " is not there: this command needs it beside the program `slipway`"));
  }
  arguments.insert(arguments.begin(), worker);
  switch (command.format()) {
    case OutputFormat::kTable:
      break;
    case OutputFormat::kJson:
      arguments.insert(arguments.end(), {"--output", "json"});
      break;
    case OutputFormat::kYaml:
      arguments.insert(arguments.end(), {"--output", "yaml"});
      break;
    case OutputFormat::kName:
      arguments.insert(arguments.end(), {"--output", "name"});
      break;
  }
  return command.env().exec(arguments);
}

struct ExportFlags {
  std::string checkpoint;
  std::string out;
  std::string dtype;
  std::string source;
};

struct EvalFlags {
  std::string model;
  std::optional<std::string> data;
  std::optional<std::string> text;
  std::optional<int64_t> seq_length;
};

// Numbers stay as they were written: they are checked here and read by the worker.
struct GenerateFlags {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<std::string> chat;
  std::optional<std::string> system;
  std::optional<std::string> max_new_tokens;
  std::optional<std::string> temperature;
  std::optional<std::string> top_p;
  std::optional<std::string> seed;
};

// Paths are relative to where the user stands; the worker runs there as well.
std::vector<std::string> GenerateArguments(const GenerateFlags& flags) {
  std::vector<std::string> arguments = {"generate", "--model", flags.model};
  const auto add = [&](const char* name, const auto& value) {
    if (value) arguments.insert(arguments.end(), {name, *value});
  };
  add("--prompt", flags.prompt);
  add("--chat", flags.chat);
  add("--system", flags.system);
  add("--max-new-tokens", flags.max_new_tokens);
  add("--temperature", flags.temperature);
  add("--top-p", flags.top_p);
  add("--seed", flags.seed);
  return arguments;
}

std::vector<std::string> EvalArguments(const EvalFlags& flags) {
  std::vector<std::string> arguments = {"eval", "--model", flags.model};
  if (flags.data) arguments.insert(arguments.end(), {"--data", *flags.data});
  if (flags.text) arguments.insert(arguments.end(), {"--text", *flags.text});
  if (flags.seq_length) arguments.insert(arguments.end(), {"--seq-length", absl::StrCat(*flags.seq_length)});
  return arguments;
}

void AddEval(CLI::App* model, Command* command) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* eval = model->add_subcommand("eval", "Loss of a model over a chat file or a text");
  eval->add_option("--model", flags->model, "Hugging Face directory or a step-… directory of a checkpoint")
      ->required()
      ->type_name("DIR");
  auto* what = eval->add_option_group("what", "What to predict");
  what->add_option("--data", flags->data, "A chat file; loss on the assistant's tokens")->type_name("FILE");
  what->add_option("--text", flags->text, "A text; loss on every token but the first")->type_name("TEXT");
  what->require_option(1);
  eval->add_option("--seq-length", flags->seq_length, "Longer samples of --data are cut")
      ->check(WholeNumberIn(1))
      ->type_name("N");
  command->Run(
      eval, [=] { return RunWorker(*command, EvalArguments(*flags)); }, Outputs::kNoNames);
}

void AddGenerate(CLI::App* app, Command* command) {
  const auto flags = std::make_shared<GenerateFlags>();
  CLI::App* generate = app->add_subcommand("generate", "Let a model write");
  generate->add_option("--model", flags->model, "Hugging Face directory or a step-… directory of a checkpoint")
      ->required()
      ->type_name("DIR");
  auto* text = generate->add_option_group("text", "What to answer");
  text->add_option("--prompt", flags->prompt, "Go on from this text")->type_name("TEXT");
  CLI::Option* chat = text->add_option("--chat", flags->chat, "Answer this message, through the model's chat template");
  chat->type_name("TEXT");
  text->require_option(1);
  generate->add_option("--system", flags->system, "System message of --chat")->needs(chat)->type_name("TEXT");
  generate->add_option("--max-new-tokens", flags->max_new_tokens, "At most so many tokens")
      ->check(WholeNumberIn(1))
      ->type_name("N");
  generate->add_option("--temperature", flags->temperature, "0 takes the likeliest token each time")
      ->check(NumberIn({.min = 0}))
      ->type_name("T");
  generate->add_option("--top-p", flags->top_p, "Draw from the likeliest tokens that make up this share")
      ->check(NumberIn({.min = 0, .max = 1, .exclusive_min = true}))
      ->type_name("P");
  generate->add_option("--seed", flags->seed, "Seed of the draws")->check(WholeNumberIn(0))->type_name("SEED");
  command->Run(
      generate, [=] { return RunWorker(*command, GenerateArguments(*flags)); }, Outputs::kNoNames);
}

}  // namespace

void AddModelCommands(CLI::App* app, Command* command) {
  CLI::App* model = app->add_subcommand("model", "Models on this machine");
  model->require_subcommand(1);

  const auto directory = std::make_shared<std::string>();
  CLI::App* inspect =
      model->add_subcommand("inspect", "Architecture, weights and tokenizer of a Hugging Face directory");
  inspect->add_option("directory", *directory, "Hugging Face model directory")->required()->type_name("DIR");
  command->Run(
      inspect,
      [=]() -> absl::StatusOr<int> {
        SLIPWAY_ASSIGN_OR_RETURN(
            const ModelReport report,
            InspectModel(AbsolutePath(*directory, command->env().working_directory, command->env())));
        command->EmitJson(report.json, report.text);
        if (!report.faults.empty()) {
          return absl::InvalidArgumentError(
              absl::StrCat(*directory, " would not load:\n", absl::StrJoin(report.faults, "\n")));
        }
        return kExitOk;
      },
      Outputs::kNoNames);

  const auto flags = std::make_shared<ExportFlags>();
  CLI::App* to_hf = model->add_subcommand("export", "Write a checkpoint's weights as a Hugging Face directory");
  to_hf->add_option("--checkpoint", flags->checkpoint, "A step-… directory")->required()->type_name("DIR");
  to_hf->add_option("--out", flags->out, "Directory to write")->required()->type_name("DIR");
  to_hf->add_option("--dtype", flags->dtype, "Type of the weights [that of the model it started from]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->type_name("TYPE");
  to_hf->add_option("--source", flags->source, "Model directory whose tokenizer is copied [the one it started from]")
      ->type_name("DIR");
  command->Run(to_hf, [=] {
    std::vector<std::string> arguments = {"export", "--checkpoint", flags->checkpoint, "--out", flags->out};
    if (!flags->dtype.empty()) arguments.insert(arguments.end(), {"--dtype", flags->dtype});
    if (!flags->source.empty()) arguments.insert(arguments.end(), {"--source", flags->source});
    return RunWorker(*command, std::move(arguments));
  });
  AddEval(model, command);

  AddGenerate(app, command);
}

}  // namespace slipway::client
