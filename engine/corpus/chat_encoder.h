// Chats to tokens with a mask of what is trained: what the assistant says, as the model's own template prints it, and
// the token that ends its turn. Not its header, not the line break after the turn, nothing of anybody else.
#ifndef SLIPWAY_ENGINE_CORPUS_CHAT_ENCODER_H_
#define SLIPWAY_ENGINE_CORPUS_CHAT_ENCODER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/corpus/chat_marks.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::engine::corpus {

struct EncodedChat {
  // Of the whole rendered chat, encoded once: the ids that transformers' apply_chat_template gives. Control markers
  // that a message spells out ("<|im_end|>") become control tokens, as there; the mask goes by place, so they train
  // nothing.
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // one for each id: 1 where the id is to be predicted
};

// Immutable; all methods may run at once.
class ChatEncoder {
 public:
  // Learns from two small chats how the template opens and ends an assistant's turn. FailedPrecondition when the model
  // has no chat template.
  static absl::StatusOr<ChatEncoder> Create(std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

  // REQUIRES: `chat` comes from ParseChatLine. InvalidArgument when the template refuses it, leaves tool calls out, or
  // makes it impossible to tell the assistant's part of the text.
  absl::StatusOr<EncodedChat> Encode(const tokenizer::ChatInput& chat) const;

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  // An assistant's turn in the rendered text. The turn ends with an end-of-turn token somewhere in [end_from, end_to):
  // the first one after content, the last one after tool calls, whose text may contain such markers itself.
  struct Turn {
    int64_t begin = 0;
    int64_t end_from = 0;
    int64_t end_to = 0;
    bool last_marker = false;
  };

  explicit ChatEncoder(std::shared_ptr<const tokenizer::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  void LearnTemplate(const tokenizer::ChatTemplate& chat_template);
  bool EndsTurn(int32_t id) const;
  absl::StatusOr<int64_t> FindBegin(const tokenizer::ChatInput& chat, const MarkedChat& marked, size_t index,
                                    int64_t previous_end) const;
  // True when contents that bear no mark cannot be mistaken for a header.
  bool HeaderIsCertain(const tokenizer::ChatInput& chat, const MarkedChat& marked) const;
  absl::StatusOr<Turn> FindTurn(const tokenizer::ChatTemplate& chat_template, const tokenizer::ChatInput& chat,
                                const MarkedChat& marked, size_t index, int64_t previous_end) const;
  // Marks the turn's tokens and returns where it ends.
  absl::StatusOr<int64_t> TrainTurn(const Turn& turn, const std::vector<tokenizer::TextSpan>& spans,
                                    EncodedChat& encoded) const;

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::string header_;                  // what the generation prompt adds; empty when the template has none
  std::optional<int32_t> learned_end_;  // the control token after the assistant's content in a small chat
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_CHAT_ENCODER_H_
