#include "engine/corpus/chat_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

using tokenizer::ChatInput;
using tokenizer::ChatTemplate;
using tokenizer::Json;
using tokenizer::TextSpan;

bool CallsTools(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

// Where the template's text ends that follows the mark at `place`: at the next mark, which may lie at the same place,
// or at the end of the text.
int64_t NextPlace(const MarkedChat& marked, int64_t place) {
  const auto [first, behind] = std::equal_range(marked.places.begin(), marked.places.end(), place);
  if (behind - first > 1) return place;
  return behind == marked.places.end() ? static_cast<int64_t>(marked.text.size()) : *behind;
}

// A template that has no words for tool calls would leave them out without a sound.
absl::Status CheckToolCallsArePrinted(const ChatTemplate& chat_template, const ChatInput& chat,
                                      const std::string& plain) {
  ChatInput without = chat;
  bool any = false;
  for (Json& message : without.messages) {
    if (!CallsTools(message)) continue;
    any = true;
    message.erase("tool_calls");
  }
  if (!any) return absl::OkStatus();
  absl::StatusOr<std::string> text = chat_template.Render(without);
  if (text.ok() && *text == plain) return absl::InvalidArgumentError("the chat template leaves tool_calls out");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatEncoder> ChatEncoder::Create(std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
  SLIPWAY_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, tokenizer->ChatTemplateFor(/*has_tools=*/false));
  ChatEncoder encoder(std::move(tokenizer));
  encoder.LearnTemplate(*chat_template);
  return encoder;
}

// What cannot be learned stays empty: a template may refuse such small chats and still serve real ones.
void ChatEncoder::LearnTemplate(const ChatTemplate& chat_template) {
  ChatInput chat;
  chat.messages = Json::parse(R"([{"role":"user","content":"u"}])");
  const absl::StatusOr<std::string> plain = chat_template.Render(chat);
  chat.add_generation_prompt = true;
  const absl::StatusOr<std::string> prompt = chat_template.Render(chat);
  if (plain.ok() && prompt.ok() && prompt->compare(0, plain->size(), *plain) == 0)
    header_ = prompt->substr(plain->size());

  chat.add_generation_prompt = false;
  chat.messages.push_back(Json::parse(R"({"role":"assistant","content":"a"})"));
  const absl::StatusOr<MarkedChat> marked = RenderMarked(chat_template, chat);
  if (!marked.ok() || !marked->contents[1].end.has_value()) return;
  const absl::StatusOr<std::vector<int32_t>> tail =
      tokenizer_->Encode(std::string_view(marked->text).substr(static_cast<size_t>(*marked->contents[1].end)));
  if (!tail.ok()) return;
  for (const int32_t id : *tail) {
    if (!tokenizer_->IsSpecial(id)) continue;
    learned_end_ = id;
    return;
  }
}

bool ChatEncoder::EndsTurn(int32_t id) const {
  return id == learned_end_ || std::binary_search(tokenizer_->stop_ids().begin(), tokenizer_->stop_ids().end(), id);
}

bool ChatEncoder::HeaderIsCertain(const ChatInput& chat, const MarkedChat& marked) const {
  if (header_.empty()) return false;
  if (marked.all_roles) return true;
  return std::all_of(chat.messages.begin(), chat.messages.end(), [&](const Json& message) {
    return IsAssistant(message) || message["content"].get_ref<const std::string&>().find(header_) == std::string::npos;
  });
}

// The turn begins behind its header: what the model has to say itself when it is prompted. Between the content before
// the turn and the turn there is only the template's text, so the first header there is the turn's.
absl::StatusOr<int64_t> ChatEncoder::FindBegin(const ChatInput& chat, const MarkedChat& marked, size_t index,
                                               int64_t previous_end) const {
  const std::optional<int64_t> content_begin = marked.contents[index].begin;
  const std::optional<int64_t> limit = content_begin.has_value() ? content_begin : marked.contents[index].end;
  int64_t from = previous_end;
  if (limit.has_value()) {
    const auto behind = std::lower_bound(marked.places.begin(), marked.places.end(), *limit);
    if (behind != marked.places.begin()) from = std::max(from, *std::prev(behind));
  } else {
    for (size_t i = 0; i < index; ++i) from = std::max(from, marked.contents[i].end.value_or(0));
  }
  if (HeaderIsCertain(chat, marked)) {
    const size_t found = marked.text.find(header_, static_cast<size_t>(from));
    const int64_t until = limit.value_or(NextPlace(marked, from));
    if (found != std::string::npos && static_cast<int64_t>(found + header_.size()) <= until) {
      return static_cast<int64_t>(found + header_.size());
    }
  }
  if (content_begin.has_value()) return *content_begin;
  return absl::InvalidArgumentError(
      StrCat("messages[", index, "]: cannot tell where the chat template puts the assistant's turn"));
}

absl::StatusOr<ChatEncoder::Turn> ChatEncoder::FindTurn(const ChatTemplate& chat_template, const ChatInput& chat,
                                                        const MarkedChat& marked, size_t index,
                                                        int64_t previous_end) const {
  Turn turn;
  SLIPWAY_ASSIGN_OR_RETURN(turn.begin, FindBegin(chat, marked, index, previous_end));
  const std::optional<int64_t> content_end = marked.contents[index].end;
  turn.end_from = std::max(turn.begin, content_end.value_or(turn.begin));
  turn.last_marker = CallsTools(chat.messages[index]);
  if (content_end.has_value() && !turn.last_marker) {
    turn.end_to = NextPlace(marked, *content_end);
    return turn;
  }
  // Without content, or with tool calls behind it, only the next message's content bounds the turn.
  if (index + 1 == chat.messages.size()) {
    turn.end_to = static_cast<int64_t>(marked.text.size());
    return turn;
  }
  std::optional<int64_t> next = marked.contents[index + 1].begin;
  if (!next.has_value()) {
    SLIPWAY_ASSIGN_OR_RETURN(next, PlaceOfBlankContent(chat_template, chat, marked.text, index + 1));
  }
  if (!next.has_value() || *next < turn.end_from) {
    return absl::InvalidArgumentError(
        StrCat("messages[", index, "]: cannot tell where the assistant's turn ends in the rendered chat"));
  }
  turn.end_to = *next;
  return turn;
}

absl::StatusOr<int64_t> ChatEncoder::TrainTurn(const Turn& turn, const std::vector<TextSpan>& spans,
                                               EncodedChat& encoded) const {
  const auto starts_before = [](const TextSpan& span, int64_t place) { return span.begin < place; };
  std::optional<int64_t> end;
  auto it = std::lower_bound(spans.begin(), spans.end(), turn.end_from, starts_before);
  for (; it != spans.end() && it->begin < turn.end_to; ++it) {
    if (!EndsTurn(encoded.ids[static_cast<size_t>(it - spans.begin())])) continue;
    end = it->end;
    if (!turn.last_marker) break;
  }
  if (!end.has_value()) {
    if (turn.last_marker) return absl::InvalidArgumentError("no end-of-turn token follows the assistant's tool calls");
    end = turn.end_from;  // a template without end-of-turn tokens: the content alone is trained
  }
  it = std::lower_bound(spans.begin(), spans.end(), turn.begin, starts_before);
  // A token that begins before the turn and reaches into it holds the turn's first letters.
  while (it != spans.begin() && std::prev(it)->end > turn.begin) --it;
  for (; it != spans.end() && it->begin < *end; ++it) encoded.trained[static_cast<size_t>(it - spans.begin())] = 1;
  return *end;
}

absl::StatusOr<EncodedChat> ChatEncoder::Encode(const ChatInput& chat) const {
  SLIPWAY_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, tokenizer_->ChatTemplateFor(!chat.tools.is_null()));
  SLIPWAY_ASSIGN_OR_RETURN(const MarkedChat marked, RenderMarked(*chat_template, chat));
  SLIPWAY_RETURN_IF_ERROR(CheckToolCallsArePrinted(*chat_template, chat, marked.text));
  SLIPWAY_ASSIGN_OR_RETURN(tokenizer::EncodedText text, tokenizer_->EncodeWithSpans(marked.text));
  EncodedChat encoded;
  encoded.ids = std::move(text.ids);
  encoded.trained.assign(encoded.ids.size(), 0);
  int64_t previous_end = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (!IsAssistant(chat.messages[i])) continue;
    SLIPWAY_ASSIGN_OR_RETURN(const Turn turn, FindTurn(*chat_template, chat, marked, i, previous_end));
    absl::StatusOr<int64_t> end = TrainTurn(turn, text.spans, encoded);
    SLIPWAY_RETURN_IF_ERROR(Annotate(end.status(), StrCat("messages[", i, "]")));
    previous_end = *end;
  }
  return encoded;
}

}  // namespace slipway::engine::corpus
