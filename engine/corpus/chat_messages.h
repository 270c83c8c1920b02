// One line of a chat file: {"messages": [{"role": "user", "content": "Hi"}, ...], "tools": [...]}. Checked before any
// template sees it, so that every fault is named instead of being rendered.
#ifndef SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_
#define SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/chat_template.h"

namespace slipway::engine::corpus {

// The messages with one form of content: always a text. A list of text parts becomes their concatenation; null or absent
// content becomes "" where the assistant calls tools instead, and is a fault elsewhere. Other members of a message, and of
// the line, are kept or ignored as the template wishes. InvalidArgument says which message and field is at fault; there
// must be at least one message of the assistant. Thread-safe.
absl::StatusOr<tokenizer::ChatInput> ParseChatLine(std::string_view line);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_CHAT_MESSAGES_H_
