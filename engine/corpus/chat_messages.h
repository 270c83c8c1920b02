// One line of a chat file: {"messages": [{"role": "user", "content": "Hi"}, ...], "tools": [...]}. Checked before any
// template sees it, so that every fault is named instead of being rendered.
#ifndef SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_
#define SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/chat_template.h"

namespace slipway::engine::corpus {

// What strftime_now shows in training, 26 July 2024: some templates print the date, and a run that goes on tomorrow has
// to see the same tokens. (It is the date that Llama 3.1's template has for want of a better one.)
inline constexpr int64_t kTrainingTime = 1721952000;

// The messages with one form of content: always a text. A list of text parts becomes their concatenation; null or
// absent content becomes "" where the assistant calls tools instead, and is a fault elsewhere. Other members of a
// message, and of the line, are kept or ignored as the template wishes. The chat's time is kTrainingTime.
// InvalidArgument says which message and field is at fault; there must be at least one message of the assistant.
// Thread-safe.
absl::StatusOr<tokenizer::ChatInput> ParseChatLine(std::string_view line);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_
