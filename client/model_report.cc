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

std::map<std::string, int64_t> TensorsByType(const HfWeights& weights) {
  std::map<std::string, int64_t> by_type;
  for (const HfTensor& tensor : weights.tensors()) ++by_type[std::string(DTypeName(tensor.stored.dtype))];
  return by_type;
}

std::string WeightSummary(const HfWeights& weights, const std::vector<std::string>& notes) {
  const std::string types = absl::StrJoin(TensorsByType(weights), ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
  return absl::StrCat(weights.tensors().size(), " tensors (", types, "), ", FormatBytes(weights.total_bytes()), " in ",
                      weights.files().size(), weights.files().size() == 1 ? " file" : " files",
                      notes.empty() ? "" : "; ", absl::StrJoin(notes, "; "));
}

Json ArchitectureJson(const ModelArch& arch) {
  Json json = {{"architecture", std::string(engine::arch::FamilyName(arch.family))},
               {"parameters", engine::arch::ParameterCount(arch)},
               {"num_layers", arch.num_layers},
               {"hidden_size", arch.hidden_size},
               {"ffn_hidden_size", arch.ffn_hidden_size},
               {"num_attention_heads", arch.num_attention_heads},
               {"num_query_groups", arch.num_query_groups},
               {"kv_channels", arch.kv_channels},
               {"add_qkv_bias", arch.add_qkv_bias},
               {"qk_layernorm", arch.qk_layernorm},
               {"vocab_size", arch.vocab_size},
               {"untie_embeddings_and_output_weights", arch.untie_embeddings_and_output_weights},
               {"max_position_embeddings", arch.max_position_embeddings},
               {"rotary_base", arch.rotary_base},
               {"rope_scaling", nullptr},
               {"norm_epsilon", arch.norm_epsilon},
               {"dtype", std::string(DTypeName(arch.dtype))}};
  if (arch.rope_scaling) {
    json["rope_scaling"] = {{"factor", arch.rope_scaling->factor},
                            {"low_freq_factor", arch.rope_scaling->low_freq_factor},
                            {"high_freq_factor", arch.rope_scaling->high_freq_factor},
                            {"original_max_position_embeddings", arch.rope_scaling->original_max_position_embeddings}};
  }
  return json;
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
  if (arch.moe) {
    lines->Add("experts",
               absl::StrCat(arch.moe->num_experts, " of width ", arch.moe->ffn_hidden_size, ", ", arch.moe->topk,
                            " for each token, in ", arch.moe->MoeLayers(arch.num_layers), " layers"));
  }
  lines->Add("vocabulary", absl::StrCat(arch.vocab_size, arch.untie_embeddings_and_output_weights
                                                             ? ", separate output matrix"
                                                             : ", output tied to the embedding"));
  lines->Add("positions",
             absl::StrCat(
                 arch.max_position_embeddings, ", rotary base ", Number(arch.rotary_base, 10),
                 arch.rope_scaling ? absl::StrCat(", llama3 scaling by ", Number(arch.rope_scaling->factor, 6)) : ""));
  lines->Add("dtype", std::string(DTypeName(arch.dtype)));
}

void AddTokenizer(const std::string& directory, const ModelArch& arch, Lines* lines, ModelReport* report) {
  std::vector<std::string>* const faults = &report->faults;
  report->json["tokenizer"] = nullptr;
  const auto tokenizer = Tokenizer::Load(directory);
  if (absl::IsNotFound(tokenizer.status())) return lines->Add("tokenizer", "none (no tokenizer.json)");
  if (!tokenizer.ok()) {
    faults->emplace_back(tokenizer.status().message());
    return;
  }
  lines->Add("tokenizer", absl::StrCat((*tokenizer)->vocab_size(), " ids, ",
                                       (*tokenizer)->has_chat_template() ? "with" : "without", " a chat template"));
  for (const std::string& line : SpecialTokenLines(**tokenizer)) lines->Add("", line);
  report->json["tokenizer"] = {{"vocab_size", (*tokenizer)->vocab_size()},
                               {"has_chat_template", (*tokenizer)->has_chat_template()},
                               {"special_tokens", SpecialTokensJson(**tokenizer)}};
  if ((*tokenizer)->vocab_size() > arch.vocab_size) {
    faults->push_back(absl::StrCat("the tokenizer has ", (*tokenizer)->vocab_size(), " ids, more than the ",
                                   arch.vocab_size, " rows of the embedding"));
  }
}

}  // namespace

WeightReport InspectWeights(const std::string& directory, const ModelArch& arch) {
  WeightReport report;
  PosixFileSystem files;
  const absl::StatusOr<HfWeights> weights = HfWeights::Open(files, directory);
  if (!weights.ok()) {
    report.faults.emplace_back(weights.status().message());
    return report;
  }
  absl::StatusOr<HfModelFindings> findings = engine::format::CheckHfModel(*weights, arch);
  if (!findings.ok()) {
    report.faults.emplace_back(findings.status().message());
    return report;
  }
  report.summary = WeightSummary(*weights, findings->notes);
  report.json = {{"tensors", weights->tensors().size()},
                 {"tensors_by_type", TensorsByType(*weights)},
                 {"bytes", weights->total_bytes()},
                 {"files", weights->files()},
                 {"notes", findings->notes}};
  report.faults = std::move(findings->faults);
  return report;
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

Json SpecialTokensJson(const Tokenizer& tokenizer) {
  const auto token = [](const std::optional<engine::tokenizer::SpecialToken>& special) {
    return special ? Json{{"id", special->id}, {"text", special->text}} : Json(nullptr);
  };
  return {{"bos", token(tokenizer.bos())}, {"eos", token(tokenizer.eos())}, {"pad", token(tokenizer.pad())}};
}

absl::StatusOr<ModelReport> InspectModel(const std::string& directory) {
  SLIPWAY_ASSIGN_OR_RETURN(const ModelArch arch, engine::arch::ReadHfConfig(JoinPath(directory, "config.json")));
  ModelReport report;
  Lines lines;
  AddArchitecture(arch, &lines);
  report.json = ArchitectureJson(arch);
  WeightReport weights = InspectWeights(directory, arch);
  if (!weights.summary.empty()) lines.Add("weights", weights.summary);
  report.json["weights"] = std::move(weights.json);
  report.faults = std::move(weights.faults);
  AddTokenizer(directory, arch, &lines, &report);
  report.text = lines.Take();
  report.json["faults"] = report.faults;
  return report;
}

}  // namespace slipway::client
