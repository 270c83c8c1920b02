// Decodes tokens as they are generated. Text comes out as soon as it can no longer change: half a character, or a word
// whose leading space depends on its neighbour, waits for the next token.
#ifndef SLIPWAY_ENGINE_TOKENIZER_INCREMENTAL_DECODER_H_
#define SLIPWAY_ENGINE_TOKENIZER_INCREMENTAL_DECODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::engine::tokenizer {

// Not thread-safe.
class IncrementalDecoder {
 public:
  IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  // The text that became certain with this token, possibly none.
  absl::StatusOr<std::string> Push(int32_t id);
  // What is still held back, with U+FFFD for an unfinished character. The decoder is as new afterwards.
  absl::StatusOr<std::string> Finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  // A window of the latest tokens: those before printed_ids_ are printed and give the others their context.
  std::vector<int32_t> window_;
  size_t printed_ids_ = 0;
  std::string printed_text_;  // Decode(window_[0, printed_ids_))
};

}  // namespace slipway::engine::tokenizer

#endif  // SLIPWAY_ENGINE_TOKENIZER_INCREMENTAL_DECODER_H_
