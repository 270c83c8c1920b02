// What a Hugging Face model directory holds beside config.json and weights: generation settings, tokenizer, chat
// template. Thread-safe: no state.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_MODEL_FILES_H_
#define SLIPWAY_ENGINE_CHECKPOINT_MODEL_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"

namespace slipway::engine::checkpoint {

struct ModelFileSources {
  std::string model_dir;           // for generation_config.json; empty: none
  std::string tokenizer_dir;       // empty: none
  std::string chat_template_path;  // replaces the tokenizer's own; empty: none
};

// Copies those that are there into `out_dir` and returns their names. An absent source directory is an empty one.
absl::StatusOr<std::vector<std::string>> CopyModelFiles(FileSystem& files, const ModelFileSources& sources,
                                                        const std::string& out_dir);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_MODEL_FILES_H_
