#include "engine/checkpoint/model_files.h"

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "common/status_macros.h"

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
constexpr char kMoreTemplates[] = "additional_chat_templates";
// Everything that some tokenizer class of transformers reads.
constexpr std::array<std::string_view, 10> kTokenizerFiles = {"tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "special_tokens_map.json",
                                                              "added_tokens.json",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "vocab.txt",
                                                              "tokenizer.model",
                                                              "chat_template.json",
                                                              kChatTemplate};

class Copier {
 public:
  Copier(FileSystem& files, std::string out_dir) : files_(files), out_dir_(std::move(out_dir)) {}

  // Copies from/name to name, if it is there.
  absl::Status Copy(const std::string& directory, const std::string& name) {
    return CopyAs(JoinPath(directory, name), name);
  }
  absl::Status CopyAs(const std::string& from, const std::string& name) {
    const absl::StatusOr<std::string> contents = files_.ReadFile(from, kMaxFileBytes);
    if (absl::IsNotFound(contents.status())) return absl::OkStatus();
    SLIPWAY_RETURN_IF_ERROR(contents.status());
    SLIPWAY_RETURN_IF_ERROR(files_.WriteFileAtomically(JoinPath(out_dir_, name), *contents));
    copied_.push_back(name);
    return absl::OkStatus();
  }
  absl::Status CopyTemplates(const std::string& directory) {
    const std::string from = JoinPath(directory, kMoreTemplates);
    const absl::StatusOr<std::vector<std::string>> names = files_.List(from);
    if (!names.ok()) return absl::IsNotFound(names.status()) ? absl::OkStatus() : names.status();
    SLIPWAY_RETURN_IF_ERROR(files_.MakeDirectories(JoinPath(out_dir_, kMoreTemplates)));
    for (const std::string& name : *names) {
      if (!absl::EndsWith(name, ".jinja")) continue;
      SLIPWAY_RETURN_IF_ERROR(CopyAs(JoinPath(from, name), JoinPath(kMoreTemplates, name)));
    }
    return absl::OkStatus();
  }

  std::vector<std::string> TakeCopied() { return std::move(copied_); }

 private:
  FileSystem& files_;
  const std::string out_dir_;
  std::vector<std::string> copied_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> CopyModelFiles(FileSystem& files, const ModelFileSources& sources,
                                                        const std::string& out_dir) {
  Copier copier(files, out_dir);
  if (!sources.model_dir.empty()) SLIPWAY_RETURN_IF_ERROR(copier.Copy(sources.model_dir, kGenerationConfig));
  if (!sources.tokenizer_dir.empty()) {
    for (const std::string_view name : kTokenizerFiles) {
      if (name == kChatTemplate && !sources.chat_template_path.empty()) continue;
      SLIPWAY_RETURN_IF_ERROR(copier.Copy(sources.tokenizer_dir, std::string(name)));
    }
    SLIPWAY_RETURN_IF_ERROR(copier.CopyTemplates(sources.tokenizer_dir));
  }
  // Read by transformers before the template in tokenizer_config.json.
  if (!sources.chat_template_path.empty()) {
    SLIPWAY_RETURN_IF_ERROR(copier.CopyAs(sources.chat_template_path, kChatTemplate));
  }
  return copier.TakeCopied();
}

}  // namespace slipway::engine::checkpoint
