// data prepare|inspect.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/dataset_report.h"
#include "client/exit_code.h"
#include "client/live_view.h"
#include "client/model_report.h"
#include "common/flag_range.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "engine/corpus/inspect.h"
#include "engine/corpus/prepare.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::client {
namespace {

using engine::corpus::PrepareProgress;
using engine::corpus::PrepareReport;
using engine::tokenizer::Tokenizer;

struct PrepareFlags {
  std::string tokenizer;
  engine::corpus::PrepareOptions options;
};

std::string ProgressLine(const PrepareProgress& progress, absl::Duration elapsed, int width) {
  const double share = progress.bytes_total > 0
                           ? static_cast<double>(progress.bytes_read) / static_cast<double>(progress.bytes_total)
                           : 0;
  const double seconds = std::max(1e-3, absl::ToDoubleSeconds(elapsed));
  std::string text = absl::StrCat(
      " ", static_cast<int>(100 * share), "%  ", Grouped(progress.lines), " lines  ", Grouped(progress.tokens),
      " tokens  ", FormatBytes(static_cast<int64_t>(static_cast<double>(progress.bytes_read) / seconds)), "/s");
  if (share > 0.01) absl::StrAppend(&text, "  eta ", FormatElapsed(elapsed * (1 / share - 1)));
  return absl::StrCat(ProgressBar(share, std::clamp(width - static_cast<int>(text.size()) - 3, 4, 40)), text);
}

Json PrepareJson(const PrepareReport& report) {
  Json json = {{"lines", report.lines}, {"skipped", report.skipped}, {"outputs", Json::array()}};
  for (const auto& output : report.outputs) {
    json["outputs"].push_back({{"key", output.key},
                               {"prefix", output.prefix},
                               {"documents", output.documents},
                               {"empty_documents", output.empty_documents},
                               {"sequences", output.sequences},
                               {"tokens", output.tokens}});
  }
  return json;
}

std::string PrepareTable(const PrepareReport& report) {
  Table table({"KEY", "DOCUMENTS", "EMPTY", "SEQUENCES", "TOKENS", "PREFIX"});
  for (const auto& output : report.outputs) {
    table.Add({OneLine(output.key), Grouped(output.documents), Grouped(output.empty_documents),
               Grouped(output.sequences), Grouped(output.tokens), OneLine(output.prefix)});
  }
  return table.Text();
}

absl::StatusOr<int> Prepare(const Command& command, PrepareFlags flags) {
  const Environment& env = command.env();
  SLIPWAY_ASSIGN_OR_RETURN(const auto tokenizer,
                           Tokenizer::Load(AbsolutePath(flags.tokenizer, env.working_directory, env)));
  BlockPainter painter;
  const absl::Time start = absl::Now();
  flags.options.progress = [&](const PrepareProgress& progress) {
    // The index is written last, so what lies there now opens as nothing.
    if (env.interrupted()) std::_Exit(kExitInterrupted);
    if (env.err_is_terminal)
      *env.err << painter.Paint({}, {ProgressLine(progress, absl::Now() - start, env.terminal_width())}) << std::flush;
  };
  PosixFileSystem files;
  const absl::StatusOr<PrepareReport> report = engine::corpus::PrepareIndexedDatasets(files, *tokenizer, flags.options);
  if (env.err_is_terminal) *env.err << painter.Paint({}, {}) << std::flush;
  if (!report.ok()) return report.status();
  for (const auto& line : report->skipped_lines)
    command.Say(absl::StrCat(flags.options.input, ":", line.line, ": left out: ", OneLine(line.reason)));
  if (report->skipped > 0) command.Say(absl::StrCat(report->skipped, " of ", report->lines, " lines were left out"));
  std::string prefixes;
  for (const auto& output : report->outputs) absl::StrAppend(&prefixes, output.prefix, "\n");
  command.EmitJson(PrepareJson(*report), PrepareTable(*report), prefixes);
  return kExitOk;
}

struct InspectFlags {
  std::string path;
  std::string tokenizer;
  int64_t seq_length = 4096;
  std::string overlong = "truncate";
  int64_t show = 0;
};

// Each piece of text with loss stands out: in green, or between » and « without colours.
std::string ShownText(const std::vector<engine::corpus::TextPiece>& pieces, bool color) {
  std::string text;
  for (const auto& piece : pieces) {
    if (!piece.trained) {
      absl::StrAppend(&text, piece.text);
    } else if (color) {
      absl::StrAppend(&text, "\x1b[32m", piece.text, "\x1b[0m");
    } else {
      absl::StrAppend(&text, "»", piece.text, "«");
    }
  }
  return text;
}

// A text of several lines, each made safe for the terminal and indented; colours are put on afterwards.
std::string Indented(const std::string& text) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) absl::StrAppend(&out, "  ", line, "\n");
  return out;
}

std::string Harmless(const std::string& text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) lines.push_back(OneLine(std::string(line)));
  return absl::StrJoin(lines, "\n");
}

// What is found out, as text and for programs.
struct Inspected {
  std::string text;
  Json json;
};

absl::Status InspectChat(const Command& command, const InspectFlags& flags, const std::string& path,
                         std::shared_ptr<const Tokenizer> tokenizer, Inspected* found) {
  if (tokenizer == nullptr)
    return absl::InvalidArgumentError("--tokenizer is required for a chat file: the report counts its tokens");
  PosixFileSystem files;
  SLIPWAY_ASSIGN_OR_RETURN(
      engine::corpus::ChatInspection inspection,
      engine::corpus::InspectChatFile(files, std::move(tokenizer),
                                      {.path = path,
                                       .seq_length = flags.seq_length,
                                       .overlong = flags.overlong == "drop" ? engine::corpus::Overlong::kDrop
                                                                            : engine::corpus::Overlong::kTruncate},
                                      flags.show));
  absl::StrAppend(&found->text, ChatSummary(inspection.report), "\n");
  found->json.update(ChatJson(inspection));
  for (auto& sample : inspection.samples) {
    for (auto& piece : sample.pieces) piece.text = Harmless(piece.text);
    absl::StrAppend(&found->text, "line ", sample.line, ", ", sample.tokens, " tokens:\n",
                    Indented(ShownText(sample.pieces, command.color(command.env().out_is_terminal))));
  }
  for (const std::string& note : inspection.report.Notes()) command.Say(OneLine(note));
  return absl::OkStatus();
}

absl::Status InspectIndexed(const InspectFlags& flags, const std::string& prefix, const Tokenizer* tokenizer,
                            Inspected* found) {
  if (flags.show > 0 && tokenizer == nullptr)
    return absl::InvalidArgumentError("--tokenizer is required to show texts: .bin holds ids");
  PosixFileSystem files;
  SLIPWAY_ASSIGN_OR_RETURN(const engine::corpus::IndexedInspection inspection,
                           engine::corpus::InspectIndexedDataset(files, prefix, tokenizer, flags.show));
  absl::StrAppend(&found->text, IndexedSummary(inspection), "\n");
  found->json.update(IndexedJson(inspection, prefix));
  for (const auto& document : inspection.samples) {
    absl::StrAppend(&found->text, "document ", document.document, ", ", document.tokens, " tokens:\n",
                    Indented(Harmless(document.text)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Inspect(const Command& command, const InspectFlags& flags) {
  const Environment& env = command.env();
  PosixFileSystem files;
  std::shared_ptr<const Tokenizer> tokenizer;
  Inspected found{.json = Json::object()};
  if (!flags.tokenizer.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(AbsolutePath(flags.tokenizer, env.working_directory, env)));
    for (const std::string& line : SpecialTokenLines(*tokenizer)) absl::StrAppend(&found.text, line, "\n");
    found.json["special_tokens"] = SpecialTokensJson(*tokenizer);
  }
  const std::string path = AbsolutePath(flags.path, env.working_directory, env);
  const std::string prefix(absl::StripSuffix(absl::StripSuffix(path, ".idx"), ".bin"));
  const bool is_indexed = files.Stat(absl::StrCat(prefix, ".idx")).ok();
  SLIPWAY_RETURN_IF_ERROR(is_indexed ? InspectIndexed(flags, prefix, tokenizer.get(), &found)
                                     : InspectChat(command, flags, path, tokenizer, &found));
  command.EmitJson(found.json, found.text);
  return kExitOk;
}

}  // namespace

void AddDataCommands(CLI::App* app, Command* command) {
  CLI::App* data = app->add_subcommand("data", "Data on this machine");
  data->require_subcommand(1);

  const auto prepare_flags = std::make_shared<PrepareFlags>();
  engine::corpus::PrepareOptions* options = &prepare_flags->options;
  CLI::App* prepare = data->add_subcommand(
      "prepare", "Turn texts in JSON lines into .bin/.idx files, as Megatron-LM's preprocess_data.py does");
  prepare->add_option("--input", options->input, "JSON lines file")->required()->type_name("FILE");
  prepare->add_option("--json-keys", options->json_keys, "Keys whose texts are taken; a pair of files each [text]")
      ->type_name("KEY");
  prepare->add_option("--output-prefix", options->output_prefix, "Files are <this>_<key>_document.bin and .idx")
      ->required()
      ->type_name("PREFIX");
  prepare->add_option("--tokenizer", prepare_flags->tokenizer, "Directory with tokenizer.json")
      ->required()
      ->type_name("DIR");
  prepare->add_flag("--append-eod", options->append_eod,
                    "End each document that is not empty with the end-of-sequence token");
  prepare->add_option("--workers", options->workers, "Threads [one a core]")
      ->check(WholeNumberIn(1, 1024))
      ->type_name("N");
  prepare->add_flag("--skip-bad-lines", options->skip_bad_lines,
                    "Leave out and count lines without the key, instead of failing");
  command->Run(prepare, [=] { return Prepare(*command, *prepare_flags); });

  const auto inspect_flags = std::make_shared<InspectFlags>();
  CLI::App* inspect = data->add_subcommand("inspect", "What is in a chat file or in .bin/.idx files");
  inspect->add_option("path", inspect_flags->path, "Chat file in JSON lines, or the prefix of .bin and .idx")
      ->required();
  inspect->add_option("--tokenizer", inspect_flags->tokenizer, "Directory with tokenizer.json")->type_name("DIR");
  inspect->add_option("--seq-length", inspect_flags->seq_length, "Tokens of a chat's sample [4096]")
      ->check(WholeNumberIn(1))
      ->type_name("N");
  inspect->add_option("--overlong", inspect_flags->overlong, "truncate or drop longer chats")
      ->check(CLI::IsMember({"truncate", "drop"}))
      ->type_name("WHAT");
  inspect->add_option("--show", inspect_flags->show, "Also print the first samples; text with loss stands out")
      ->check(WholeNumberIn(0))
      ->type_name("N");
  command->Run(
      inspect, [=] { return Inspect(*command, *inspect_flags); }, Outputs::kNoNames);
}

}  // namespace slipway::client
