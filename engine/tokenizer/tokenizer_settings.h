// What a Hugging Face directory says about its tokenizer beside tokenizer.json: special tokens, stop tokens, length
// limit and chat templates.
#ifndef SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_SETTINGS_H_
#define SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/tokenizer/json_text.h"

namespace slipway::engine::tokenizer {

// The texts as the files give them; Tokenizer turns them into ids.
struct TokenizerSettings {
  // "bos_token" -> "<s>", for those of bos, eos, unk, sep, pad, cls and mask that are set.
  std::map<std::string, std::string> special_tokens;
  // Ends generation: generation_config.json's eos_token_id, a number or a list. Empty when there is none.
  std::vector<int64_t> generation_eos_ids;
  // Unset when the file names no limit or a placeholder such as 1e30.
  std::optional<int64_t> model_max_length;
  // By name; the plain one is "default".
  std::map<std::string, std::string> chat_templates;
};

// Reads tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja and
// additional_chat_templates/ of `directory`, each of which may be absent. A template in a .jinja file wins over
// tokenizer_config.json's. InvalidArgument names the file and the field at fault.
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(FileSystem& files, const std::string& directory);

}  // namespace slipway::engine::tokenizer

#endif  // SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_SETTINGS_H_
