#include "engine/corpus/chat_messages.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/tokenizer/json_text.h"

namespace slipway::engine::corpus {
namespace {

using tokenizer::Json;
using tokenizer::ShowJson;

std::string KeysOf(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(StrCat("\"", key, "\""));
  return keys.empty() ? "nothing" : absl::StrJoin(keys, ", ");
}

// "there is no "messages"; it has "message" (did you mean "messages"?)"
absl::Status Missing(const Json& object, const std::string& wanted) {
  std::string text = StrCat("there is no \"", wanted, "\"; it has ", KeysOf(object));
  for (const auto& [key, value] : object.items()) {
    if (NearestKey(key, {wanted}).has_value()) text += StrCat(" (did you mean \"", wanted, "\" by \"", key, "\"?)");
  }
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<std::string> TextOfParts(const Json& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return absl::InvalidArgumentError(
          StrCat("content[", i, "] is ", ShowJson(part), "; expected {\"type\": \"text\", \"text\": ...}"));
    }
    if (part["type"] != "text") {
      return absl::InvalidArgumentError(
          StrCat("content[", i, "] is of type ", ShowJson(part["type"]), "; only \"text\" can be trained"));
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return absl::InvalidArgumentError(StrCat("content[", i, "] has no text in \"text\": ", ShowJson(part)));
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

absl::StatusOr<bool> CallsTools(const Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return false;
  if (!calls->is_array()) {
    return absl::InvalidArgumentError(StrCat("tool_calls is ", ShowJson(*calls), "; expected a list"));
  }
  for (const Json& call : *calls) {
    if (!call.is_object()) {
      return absl::InvalidArgumentError(StrCat("tool_calls has ", ShowJson(call), "; expected objects"));
    }
  }
  return !calls->empty();
}

absl::Status NormalizeMessage(Json& message) {
  if (!message.is_object())
    return absl::InvalidArgumentError(StrCat("it is ", ShowJson(message), "; expected an object"));
  if (!message.contains("role")) return Missing(message, "role");
  if (!message["role"].is_string() || message["role"].get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(
        StrCat("role is ", ShowJson(message["role"]), "; expected a text such as \"user\""));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const bool calls_tools, CallsTools(message));
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (!calls_tools) {
      if (content == message.end()) return Missing(message, "content");
      return absl::InvalidArgumentError("content is null; expected a text (null is for messages with tool_calls)");
    }
    message["content"] = "";
  } else if (content->is_array()) {
    SLIPWAY_ASSIGN_OR_RETURN(std::string text, TextOfParts(*content));
    *content = std::move(text);
  } else if (!content->is_string()) {
    return absl::InvalidArgumentError(StrCat("content is ", ShowJson(*content), "; expected a text"));
  }
  return absl::OkStatus();
}

absl::Status CheckTools(const Json& tools) {
  if (!tools.is_array()) return absl::InvalidArgumentError(StrCat("tools is ", ShowJson(tools), "; expected a list"));
  for (const Json& tool : tools) {
    if (!tool.is_object()) {
      return absl::InvalidArgumentError(StrCat("tools has ", ShowJson(tool), "; expected objects"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<tokenizer::ChatInput> ParseChatLine(std::string_view line) {
  SLIPWAY_ASSIGN_OR_RETURN(Json json, tokenizer::ParseJson(line));
  if (!json.is_object())
    return absl::InvalidArgumentError(StrCat("the line is ", ShowJson(json), "; expected an object"));
  if (!json.contains("messages")) return Missing(json, "messages");
  tokenizer::ChatInput chat;
  chat.now_unix_seconds = kTrainingTime;
  chat.messages = std::move(json["messages"]);
  if (!chat.messages.is_array()) {
    return absl::InvalidArgumentError(StrCat("messages is ", ShowJson(chat.messages), "; expected a list"));
  }
  if (chat.messages.empty()) return absl::InvalidArgumentError("messages is empty");
  bool has_assistant = false;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    SLIPWAY_RETURN_IF_ERROR(Annotate(NormalizeMessage(chat.messages[i]), StrCat("messages[", i, "]")));
    has_assistant = has_assistant || chat.messages[i]["role"] == "assistant";
  }
  if (!has_assistant)
    return absl::InvalidArgumentError("no message has the role \"assistant\": there is nothing to learn");
  if (const auto tools = json.find("tools"); tools != json.end() && !tools->is_null()) {
    SLIPWAY_RETURN_IF_ERROR(CheckTools(*tools));
    if (!tools->empty()) chat.tools = *tools;
  }
  return chat;
}

}  // namespace slipway::engine::corpus
