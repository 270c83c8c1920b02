#include "engine/corpus/chat_marks.h"

#include <charconv>
#include <string_view>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

using tokenizer::ChatInput;
using tokenizer::ChatTemplate;
using tokenizer::Json;

constexpr std::string_view kOpen = "\xF3\xB5\x80\x80";   // U+F5000
constexpr std::string_view kClose = "\xF3\xB5\x80\x81";  // U+F5001
constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

std::string Mark(size_t index, char kind) { return StrCat(kOpen, index, std::string(1, kind), kClose); }

const std::string& ContentOf(const Json& message) { return message["content"].get_ref<const std::string&>(); }

void MarkContent(Json& message, size_t index) {
  const std::string& content = ContentOf(message);
  const size_t begin = content.find_first_not_of(kWhiteSpace);
  if (begin == std::string::npos) return;
  const size_t end = content.find_last_not_of(kWhiteSpace) + 1;
  message["content"] = StrCat(content.substr(0, begin), Mark(index, 'b'), content.substr(begin, end - begin),
                              Mark(index, 'e'), content.substr(end));
}

// Takes the marks out of `rendered`.
absl::Status CollectMarks(std::string_view rendered, MarkedChat& chat) {
  while (true) {
    const size_t open = rendered.find(kOpen);
    chat.text.append(rendered.substr(0, open));
    if (open == std::string_view::npos) return absl::OkStatus();
    rendered.remove_prefix(open + kOpen.size());
    size_t index = 0;
    const auto [digits_end, error] = std::from_chars(rendered.data(), rendered.data() + rendered.size(), index);
    rendered.remove_prefix(static_cast<size_t>(digits_end - rendered.data()));
    if (error != std::errc() || index >= chat.contents.size() || rendered.size() < 1 + kClose.size() ||
        (rendered[0] != 'b' && rendered[0] != 'e') || rendered.substr(1, kClose.size()) != kClose) {
      return absl::InvalidArgumentError("the chat template changes the contents that it prints");
    }
    const bool is_begin = rendered[0] == 'b';
    rendered.remove_prefix(1 + kClose.size());
    const int64_t place = static_cast<int64_t>(chat.text.size());
    std::optional<int64_t>& mark = is_begin ? chat.contents[index].begin : chat.contents[index].end;
    if (mark.has_value()) {
      return absl::InvalidArgumentError(StrCat("the chat template prints the content of messages[", index, "] twice"));
    }
    mark = place;
    chat.places.push_back(place);
  }
}

absl::StatusOr<MarkedChat> TryMarks(const ChatTemplate& chat_template, const ChatInput& chat, const std::string& plain,
                                    bool all_roles) {
  ChatInput marked = chat;
  for (size_t i = 0; i < marked.messages.size(); ++i) {
    if (all_roles || IsAssistant(marked.messages[i])) MarkContent(marked.messages[i], i);
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::string rendered, chat_template.Render(marked));
  MarkedChat result;
  result.contents.resize(chat.messages.size());
  result.all_roles = all_roles;
  SLIPWAY_RETURN_IF_ERROR(CollectMarks(rendered, result));
  if (result.text != plain) {
    return absl::InvalidArgumentError(
        "the chat template prints more than the contents depending on what they say, so the assistant's part of the "
        "text "
        "is not certain");
  }
  return result;
}

}  // namespace

bool IsAssistant(const Json& message) { return message["role"] == "assistant"; }

bool HasBlankContent(const Json& message) {
  return ContentOf(message).find_first_not_of(kWhiteSpace) == std::string::npos;
}

absl::StatusOr<MarkedChat> RenderMarked(const ChatTemplate& chat_template, const ChatInput& chat) {
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string& content = ContentOf(chat.messages[i]);
    if (content.find(kOpen) != std::string::npos || content.find(kClose) != std::string::npos) {
      return absl::InvalidArgumentError(
          StrCat("messages[", i, "]: the content has one of the private characters U+F5000 and U+F5001"));
    }
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::string plain, chat_template.Render(chat));
  absl::StatusOr<MarkedChat> marked = TryMarks(chat_template, chat, plain, /*all_roles=*/true);
  // Some templates look at how the user's content begins (Qwen3: "<tool_response>").
  if (!marked.ok()) {
    absl::StatusOr<MarkedChat> fewer = TryMarks(chat_template, chat, plain, /*all_roles=*/false);
    if (fewer.ok()) return fewer;
  }
  return marked;
}

absl::StatusOr<std::optional<int64_t>> PlaceOfBlankContent(const ChatTemplate& chat_template, const ChatInput& chat,
                                                           const std::string& plain, size_t index) {
  ChatInput probe = chat;
  probe.messages[index]["content"] = StrCat(Mark(index, 'b'), "x");
  SLIPWAY_ASSIGN_OR_RETURN(const std::string rendered, chat_template.Render(probe));
  const size_t place = rendered.find(Mark(index, 'b'));
  if (place == std::string::npos || plain.compare(0, place, rendered, 0, place) != 0) return std::nullopt;
  return static_cast<int64_t>(place);
}

}  // namespace slipway::engine::corpus
