#include "engine/tokenizer/chat_template.h"

#include <utility>

#include "common/status_macros.h"
#include "engine/tokenizer/abi_bytes.h"

namespace slipway::engine::tokenizer {

using internal::AbiBytes;
using internal::BytesOf;

ChatTemplate::ChatTemplate(SlipwayTemplateHandle* handle, std::string source, Json special_tokens)
    : handle_(handle), source_(std::move(source)), special_tokens_(std::move(special_tokens)) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Compile(std::string source, Json special_tokens) {
  AbiBytes error;
  SlipwayTemplateHandle* handle = nullptr;
  const SlipwayTokenizerCode code = slipway_template_compile(BytesOf(source), source.size(), &handle, error.out());
  SLIPWAY_RETURN_IF_ERROR(Annotate(internal::ToStatus(code, error), "chat template"));
  return ChatTemplate(handle, std::move(source), std::move(special_tokens));
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatInput& input) const {
  Json variables = special_tokens_;
  variables["messages"] = input.messages;
  variables["tools"] = input.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  if (input.now_unix_seconds.has_value()) variables["slipway_now"] = *input.now_unix_seconds;
  for (const auto& [name, value] : input.variables.items()) variables[name] = value;
  const std::string text = variables.dump(-1, ' ', false, Json::error_handler_t::replace);
  AbiBytes error;
  AbiBytes out;
  const SlipwayTokenizerCode code =
      slipway_template_render(handle_.get(), BytesOf(text), text.size(), out.out(), error.out());
  SLIPWAY_RETURN_IF_ERROR(Annotate(internal::ToStatus(code, error), "chat template"));
  return out.ToString();
}

}  // namespace slipway::engine::tokenizer
