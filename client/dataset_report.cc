#include "client/dataset_report.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"
#include "client/model_report.h"
#include "common/posix_file_system.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::client {
namespace {

using engine::arch::ModelArch;
using engine::corpus::ChatDataset;
using engine::tokenizer::Tokenizer;

class JobFiles {
 public:
  JobFiles(const v1::TrainingSpec& spec, const std::optional<ModelArch>& arch, const std::set<std::string>& wrong)
      : spec_(spec), arch_(arch), wrong_(wrong) {}

  FileReport Take() && {
    CheckWeights();
    LoadTokenizer();
    if (wrong_.contains("dataset.kind") || wrong_.contains("training.seq_length")) return std::move(report_);
    if (spec_.dataset().kind() == "chat") {
      CheckChat("training data", "dataset.path", spec_.dataset().path());
      CheckChat("validation data", "dataset.validation_path", spec_.dataset().validation_path());
    } else if (spec_.dataset().kind() == "indexed") {
      CheckIndexed("training data", "dataset.path", spec_.dataset().path());
      CheckIndexed("validation data", "dataset.validation_path", spec_.dataset().validation_path());
    } else if (spec_.dataset().kind() == "mock") {
      Line("training data", absl::StrCat("made up, ", spec_.dataset().mock_num_samples(), " samples"));
    }
    return std::move(report_);
  }

 private:
  void Line(const std::string& name, const std::string& value) { report_.lines.emplace_back(name, value); }
  void Fault(const std::string& path, const std::string& value, const absl::Status& status) {
    report_.faults.push_back({.path = path, .value = value, .message = std::string(status.message())});
  }
  bool IsHere(const std::string& what, const std::string& path) {
    if (files_.Stat(path).ok()) return true;
    report_.notes.push_back(absl::StrCat(what, " is not on this machine and was not looked at: ", path));
    return false;
  }

  void CheckWeights() {
    const v1::ModelSpec& model = spec_.model();
    if (!model.has_hf_path() || model.random_init() || model.has_pretrained_checkpoint() || !arch_) return;
    const WeightReport weights = InspectWeights(model.hf_path(), *arch_);
    for (const std::string& fault : weights.faults) {
      report_.faults.push_back({.path = "model.hf_path", .value = model.hf_path(), .message = fault});
    }
    if (!weights.summary.empty()) Line("weights", weights.summary);
  }

  void LoadTokenizer() {
    const std::string& path = spec_.tokenizer().path();
    const bool needed = spec_.dataset().kind() == "chat";
    if (path.empty() || (needed && !IsHere("the tokenizer", path))) return;
    const std::string& chat_template = spec_.tokenizer().chat_template_path();
    if (!chat_template.empty() && !IsHere("the chat template", chat_template)) return;
    auto tokenizer = Tokenizer::Load(path, chat_template);
    if (!tokenizer.ok()) {
      const bool is_template = !chat_template.empty() && Tokenizer::Load(path).ok();
      if (is_template) Fault("tokenizer.chat_template_path", chat_template, tokenizer.status());
      if (!is_template && needed) Fault("tokenizer.path", path, tokenizer.status());
      return;
    }
    tokenizer_ = *std::move(tokenizer);
    Line("special tokens", absl::StrJoin(SpecialTokenLines(*tokenizer_), ", "));
    if (arch_ && tokenizer_->vocab_size() > arch_->vocab_size) {
      report_.notes.push_back(absl::StrCat("the tokenizer has ", tokenizer_->vocab_size(), " ids, more than the ",
                                           arch_->vocab_size,
                                           " rows of the embedding: data that has the highest ones is refused"));
    }
  }

  void CheckChat(const std::string& name, const std::string& path, const std::string& file) {
    if (file.empty() || tokenizer_ == nullptr || !IsHere(name, file)) return;
    const auto dataset =
        ChatDataset::Load(files_, tokenizer_,
                          {.path = file,
                           .seq_length = spec_.training().seq_length(),
                           .overlong = spec_.dataset().overlong() == "drop" ? engine::corpus::Overlong::kDrop
                                                                            : engine::corpus::Overlong::kTruncate});
    if (!dataset.ok()) return Fault(path, file, dataset.status());
    Line(name, ChatSummary((*dataset)->report()));
    for (const std::string& note : (*dataset)->report().Notes()) report_.notes.push_back(note);
    if (arch_ && (*dataset)->vocab_bound() > arch_->vocab_size) {
      Fault(path, file,
            absl::InvalidArgumentError(absl::StrCat("holds the token id ", (*dataset)->vocab_bound() - 1,
                                                    ", and the embedding has ", arch_->vocab_size, " rows")));
    }
  }

  void CheckIndexed(const std::string& name, const std::string& path, const std::string& prefix) {
    if (prefix.empty() || !IsHere(name, absl::StrCat(prefix, ".idx"))) return;
    const auto inspection = engine::corpus::InspectIndexedDataset(files_, prefix, nullptr, 0);
    if (!inspection.ok()) return Fault(path, prefix, inspection.status());
    Line(name, IndexedSummary(*inspection));
    if (inspection->tokens <= spec_.training().seq_length()) {
      Fault(path, prefix,
            absl::InvalidArgumentError(
                absl::StrCat("has ", inspection->tokens, " tokens; one sample of training.seq_length = ",
                             spec_.training().seq_length(), " needs ", spec_.training().seq_length() + 1)));
    }
  }

  const v1::TrainingSpec& spec_;
  const std::optional<ModelArch>& arch_;
  const std::set<std::string>& wrong_;
  PosixFileSystem files_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  FileReport report_;
};

}  // namespace

FileReport InspectJobFiles(const v1::TrainingSpec& resolved, const std::optional<ModelArch>& arch,
                           const std::set<std::string>& wrong) {
  return JobFiles(resolved, arch, wrong).Take();
}

std::string ChatSummary(const engine::corpus::ChatReport& report) {
  return absl::StrCat(Grouped(report.samples), " samples of ", Grouped(report.lines), " lines, ",
                      Grouped(report.tokens), " tokens, ", Grouped(report.loss_tokens), " with loss, ",
                      Grouped(report.truncated), " truncated, ", Grouped(report.dropped), " left out; the longest has ",
                      Grouped(report.longest_tokens), " tokens (line ", report.longest_line, ")");
}

std::string IndexedSummary(const engine::corpus::IndexedInspection& inspection) {
  return absl::StrCat(Grouped(inspection.documents), " documents (", Grouped(inspection.empty_documents), " empty), ",
                      Grouped(inspection.sequences), " sequences of ", Grouped(inspection.shortest_sequence), " to ",
                      Grouped(inspection.longest_sequence), " tokens, ", Grouped(inspection.tokens), " tokens as ",
                      std::string(engine::format::TokenTypeName(inspection.token_type)));
}

Json ChatJson(const engine::corpus::ChatInspection& inspection) {
  const engine::corpus::ChatReport& report = inspection.report;
  Json json = {{"kind", "chat"},
               {"path", report.path},
               {"lines", report.lines},
               {"samples", report.samples},
               {"tokens", report.tokens},
               {"loss_tokens", report.loss_tokens},
               {"truncated", report.truncated},
               {"longest_tokens", report.longest_tokens},
               {"longest_line", report.longest_line},
               {"dropped", report.dropped},
               {"dropped_lines", Json::array()},
               {"shown", Json::array()}};
  for (const auto& line : report.dropped_lines)
    json["dropped_lines"].push_back({{"line", line.line}, {"reason", line.reason}});
  for (const auto& sample : inspection.samples) {
    Json pieces = Json::array();
    for (const auto& piece : sample.pieces) pieces.push_back({{"text", piece.text}, {"trained", piece.trained}});
    json["shown"].push_back({{"line", sample.line}, {"tokens", sample.tokens}, {"pieces", std::move(pieces)}});
  }
  return json;
}

Json IndexedJson(const engine::corpus::IndexedInspection& inspection, const std::string& prefix) {
  Json json = {{"kind", "indexed"},
               {"prefix", prefix},
               {"token_type", std::string(engine::format::TokenTypeName(inspection.token_type))},
               {"documents", inspection.documents},
               {"empty_documents", inspection.empty_documents},
               {"sequences", inspection.sequences},
               {"shortest_sequence", inspection.shortest_sequence},
               {"longest_sequence", inspection.longest_sequence},
               {"tokens", inspection.tokens},
               {"shown", Json::array()}};
  for (const auto& document : inspection.samples) {
    json["shown"].push_back({{"document", document.document}, {"tokens", document.tokens}, {"text", document.text}});
  }
  return json;
}

}  // namespace slipway::client
