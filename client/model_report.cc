#include "client/model_report.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/model_estimate.h"
#include "engine/format/hf_model_check.h"
#include "engine/format/hf_weights.h"

namespace slipway::client {
namespace {

using engine::arch::ModelArch;
using engine::format::HfModelFindings;
using engine::format::HfTensor;
using engine::format::HfWeights;
using engine::tokenizer::Tokenizer;

class Lines {
 public:
  void Add(const std::string& name, const std::string& value) {
    absl::StrAppend(&text_, name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string WeightSummary(const HfWeights& weights, const std::vector<std::string>& notes) {
  std::map<std::string, int64_t> by_type;
  for (const HfTensor& tensor : weights.tensors()) ++by_type[std::string(DTypeName(tensor.stored.dtype))];
  const std::string types = absl::StrJoin(
      by_type, ", ", [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.second, " ", entry.first); });
  return absl::StrCat(weights.tensors().size(), " tensors (", types, "), ", FormatBytes(weights.total_bytes()), " in ",
                      weights.files().size(), weights.files().size() == 1 ? " file" : " files",
                      notes.empty() ? "" : "; ", absl::StrJoin(notes, "; "));
}

void AddArchitecture(const ModelArch& arch, Lines* lines) {
  lines->Add("architecture", std::string(engine::arch::FamilyName(arch.family)));
  lines->Add("parameters", Grouped(engine::arch::ParameterCount(arch)));
  lines->Add("layers", absl::StrCat(arch.num_layers));
  lines->Add("hidden size", absl::StrCat(arch.hidden_size, ", feed-forward ", arch.ffn_hidden_size));
  lines->Add("attention",
             absl::StrCat(arch.num_attention_heads, " query heads, ", arch.num_query_groups, " key/value heads, ",
                          arch.kv_channels, " channels each", arch.add_qkv_bias ? ", biases on q, k, v" : "",
                          arch.qk_layernorm ? ", norms on q and k" : ""));
  lines->Add("vocabulary", absl::StrCat(arch.vocab_size, arch.untie_embeddings_and_output_weights
                                                             ? ", separate output matrix"
                                                             : ", output tied to the embedding"));
  lines->Add("positions",
             absl::StrCat(
                 arch.max_position_embeddings, ", rotary base ", Number(arch.rotary_base, 10),
                 arch.rope_scaling ? absl::StrCat(", llama3 scaling by ", Number(arch.rope_scaling->factor, 6)) : ""));
  lines->Add("dtype", std::string(DTypeName(arch.dtype)));
}

void AddTokenizer(const std::string& directory, const ModelArch& arch, Lines* lines, std::vector<std::string>* faults) {
  const auto tokenizer = Tokenizer::Load(directory);
  if (absl::IsNotFound(tokenizer.status())) return lines->Add("tokenizer", "none (no tokenizer.json)");
  if (!tokenizer.ok()) {
    faults->emplace_back(tokenizer.status().message());
    return;
  }
  lines->Add("tokenizer", absl::StrCat((*tokenizer)->vocab_size(), " ids, ",
                                       (*tokenizer)->has_chat_template() ? "with" : "without", " a chat template"));
  for (const std::string& line : SpecialTokenLines(**tokenizer)) lines->Add("", line);
  if ((*tokenizer)->vocab_size() > arch.vocab_size) {
    faults->push_back(absl::StrCat("the tokenizer has ", (*tokenizer)->vocab_size(), " ids, more than the ",
                                   arch.vocab_size, " rows of the embedding"));
  }
}

}  // namespace

std::vector<std::string> WeightFaults(const std::string& directory, const ModelArch& arch, std::string* summary) {
  PosixFileSystem files;
  const absl::StatusOr<HfWeights> weights = HfWeights::Open(files, directory);
  if (!weights.ok()) return {std::string(weights.status().message())};
  absl::StatusOr<HfModelFindings> findings = engine::format::CheckHfModel(*weights, arch);
  if (!findings.ok()) return {std::string(findings.status().message())};
  *summary = WeightSummary(*weights, findings->notes);
  return std::move(findings->faults);
}

std::vector<std::string> SpecialTokenLines(const Tokenizer& tokenizer) {
  std::vector<std::string> lines;
  const auto add = [&](const char* name, const std::optional<engine::tokenizer::SpecialToken>& token) {
    lines.push_back(absl::StrCat(name, " ", token ? absl::StrCat(token->id, " ", OneLine(token->text)) : "none"));
  };
  add("BOS", tokenizer.bos());
  add("EOS", tokenizer.eos());
  add("PAD", tokenizer.pad());
  return lines;
}

absl::StatusOr<ModelReport> InspectModel(const std::string& directory) {
  SLIPWAY_ASSIGN_OR_RETURN(const ModelArch arch, engine::arch::ReadHfConfig(JoinPath(directory, "config.json")));
  ModelReport report;
  Lines lines;
  AddArchitecture(arch, &lines);
  std::string summary;
  report.faults = WeightFaults(directory, arch, &summary);
  if (!summary.empty()) lines.Add("weights", summary);
  AddTokenizer(directory, arch, &lines, &report.faults);
  report.text = lines.Take();
  return report;
}

}  // namespace slipway::client
