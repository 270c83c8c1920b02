// The chat templates of a Hugging Face model (Jinja2), rendered as transformers' apply_chat_template renders them.
#ifndef SLIPWAY_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_
#define SLIPWAY_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/json_text.h"
#include "engine/tokenizer/tokenizer_abi.h"

namespace slipway::engine::tokenizer {

struct ChatInput {
  // The list of messages, each an object with "role" and what else the template reads.
  Json messages = Json::array();
  // The list of tools, or null for none.
  Json tools = nullptr;
  // Ends the text with the header of the next assistant turn: for generation, never for training.
  bool add_generation_prompt = false;
  // The time that the template's strftime_now shows, in UTC; unset: the clock's, in local time.
  std::optional<int64_t> now_unix_seconds;
  // More variables of the template, such as {"enable_thinking": false}. They win over everything else.
  Json variables = Json::object();
};

// Immutable; all methods may run at once.
class ChatTemplate {
 public:
  // `special_tokens` are variables of every rendering: {"bos_token": "<s>", ...}. InvalidArgument with the line for a
  // template that does not parse.
  static absl::StatusOr<ChatTemplate> Compile(std::string source, Json special_tokens);

  // InvalidArgument with the template's line when it fails or refuses (raise_exception), or runs away.
  absl::StatusOr<std::string> Render(const ChatInput& input) const;

  const std::string& source() const { return source_; }

 private:
  struct Free {
    void operator()(SlipwayTemplateHandle* handle) const { slipway_template_free(handle); }
  };
  ChatTemplate(SlipwayTemplateHandle* handle, std::string source, Json special_tokens);

  std::unique_ptr<SlipwayTemplateHandle, Free> handle_;
  std::string source_;
  Json special_tokens_;
};

}  // namespace slipway::engine::tokenizer

#endif  // SLIPWAY_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_
