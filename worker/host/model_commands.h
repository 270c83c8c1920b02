// `slipway-worker generate|export|eval`: what a user does with a model directory or a checkpoint, outside of any job.
// Each command is flags (the same that `slipway` passes on), the work, which gives a Status and can be tested, and the
// command itself, which prints the error and returns the exit code. One command a process.
#ifndef SLIPWAY_WORKER_HOST_MODEL_COMMANDS_H_
#define SLIPWAY_WORKER_HOST_MODEL_COMMANDS_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace slipway::worker::host {

// What the commands that compute have in common.
struct ComputeOptions {
  std::string model;           // a Hugging Face directory, or a step-… directory of a checkpoint
  std::string device = "cpu";  // or cuda:N
  std::string dtype;           // float32 or bfloat16; empty: float32 on CPU, bfloat16 on CUDA
  int threads = 0;             // CPU threads; 0: all cores
};

struct GenerateOptions {
  ComputeOptions compute;
  std::optional<std::string> prompt;  // exactly one of prompt and chat
  std::optional<std::string> chat;
  std::optional<std::string> system;  // with chat
  int64_t max_new_tokens = 256;
  double temperature = 0;
  double top_p = 1;
  uint64_t seed = 0;
  std::string output = "text";  // or json, yaml
};
void AddGenerateFlags(CLI::App& app, GenerateOptions& options);
// Writes the reply to `out`, without the tokens that end it: as text while its tokens come, and no further than
// somebody reads it; as JSON or YAML at the end, with the counts of tokens and why it ended.
absl::Status Generate(const GenerateOptions& options, std::ostream& out);
int GenerateCommand(const GenerateOptions& options);

struct ExportOptions {
  std::string checkpoint;
  std::string out;
  std::string dtype;   // float32, bfloat16 or float16; empty: that of the model it started from
  std::string source;  // model directory to take tokenizer and generation settings from; empty: the one it started from
  std::string output = "text";  // or json, yaml, name
};
void AddExportFlags(CLI::App& app, ExportOptions& options);
absl::Status Export(const ExportOptions& options, std::ostream& out, std::ostream& notes);
int ExportCommand(const ExportOptions& options);

struct EvalOptions {
  ComputeOptions compute;
  std::optional<std::string> data;  // a chat file; exactly one of data and text
  std::optional<std::string> text;
  int64_t seq_length = 4096;    // longer samples of `data` are cut
  std::string output = "text";  // or json, yaml
};
void AddEvalFlags(CLI::App& app, EvalOptions& options);
absl::Status Eval(const EvalOptions& options, std::ostream& out);
int EvalCommand(const EvalOptions& options);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_MODEL_COMMANDS_H_
