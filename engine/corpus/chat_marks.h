// Private to this folder: where each message's content went in a rendered chat.
//
// The chat is rendered twice, plainly and with marks around each content (characters of Unicode's private use area,
// inside its leading and trailing white space, so that templates may trim). Without the marks both texts must be equal,
// so the marks' places are places in the plain text. Nothing is found by searching for what a message says.
#ifndef SLIPWAY_ENGINE_CORPUS_CHAT_MARKS_H_
#define SLIPWAY_ENGINE_CORPUS_CHAT_MARKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/chat_template.h"

namespace slipway::engine::corpus {

struct ContentMarks {
  std::optional<int64_t> begin;
  std::optional<int64_t> end;
};

struct MarkedChat {
  std::string text;  // the plain rendering
  // One a message. Empty where the content is blank, or the template leaves it out or takes it apart.
  std::vector<ContentMarks> contents;
  // Every place of a mark in the text, ascending: text between two neighbours is either the template's or one
  // content's.
  std::vector<int64_t> places;
  // False when only the assistant's contents could be marked.
  bool all_roles = true;
};

// InvalidArgument when the template fails, or prints something else with marks in the contents.
absl::StatusOr<MarkedChat> RenderMarked(const tokenizer::ChatTemplate& chat_template, const tokenizer::ChatInput& chat);

// Where message `index`, whose content is blank, would have its content: found by rendering the chat once more with a
// letter there. Nothing when the template prints no content for it, or other things before it.
absl::StatusOr<std::optional<int64_t>> PlaceOfBlankContent(const tokenizer::ChatTemplate& chat_template,
                                                           const tokenizer::ChatInput& chat, const std::string& plain,
                                                           size_t index);

bool IsAssistant(const tokenizer::Json& message);
bool HasBlankContent(const tokenizer::Json& message);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_CHAT_MARKS_H_
