// A model's tokenizer, read from its Hugging Face directory (tokenizer.json and the settings beside it). Ids are those
// that transformers' fast tokenizer gives for the same files.
//
//   SLIPWAY_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::Load("/models/SmolLM2"));
//   SLIPWAY_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode("Hello"));
#ifndef SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_H_
#define SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/tokenizer_abi.h"
#include "engine/tokenizer/tokenizer_settings.h"

namespace slipway::engine::tokenizer {

struct SpecialToken {
  int32_t id = 0;
  std::string text;
};

// What tokenizer.json's post-processor adds around a text, such as a beginning-of-sequence token. Chat templates write
// such tokens themselves, so their text is encoded with kNone.
enum class AddSpecialTokens { kNone, kAsConfigured };

// Bytes [begin, end) of a text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const TextSpan& a, const TextSpan& b) { return a.begin == b.begin && a.end == b.end; }
};

struct EncodedText {
  std::vector<int32_t> ids;
  // One for each id: the bytes it came from, without gaps. A token inside a character has that whole character; a token
  // that was added around the text has an empty span.
  std::vector<TextSpan> spans;
};

// Immutable; all methods may run at once.
class Tokenizer {
 public:
  // NotFound when tokenizer.json is missing; InvalidArgument names the file and what is wrong with it, such as a
  // special token that tokenizer.json does not know or a template that does not parse.
  // `chat_template_path`: a template file that replaces the directory's own ones; empty: none.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& directory,
                                                               const std::string& chat_template_path = "");

  // Control markers in the text ("<|im_end|>") become their special ids, as in transformers. InvalidArgument when the
  // text is not valid UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              AddSpecialTokens add = AddSpecialTokens::kNone) const;
  absl::StatusOr<EncodedText> EncodeWithSpans(std::string_view text,
                                              AddSpecialTokens add = AddSpecialTokens::kNone) const;
  // Ids outside the vocabulary are refused.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  // Highest id + 1, added tokens included: what an embedding must have at least.
  int64_t vocab_size() const { return vocab_size_; }
  std::optional<int32_t> IdOf(std::string_view token) const;
  // As tokenizer.json spells it (byte-level tokenizers write a space as "Ġ"). NotFound for an id without a token.
  absl::StatusOr<std::string> TokenOf(int32_t id) const;
  // True for control tokens, which Decode can skip.
  bool IsSpecial(int32_t id) const { return special_ids_.contains(id); }

  const std::optional<SpecialToken>& bos() const { return bos_; }
  const std::optional<SpecialToken>& eos() const { return eos_; }
  const std::optional<SpecialToken>& pad() const { return pad_; }
  const std::optional<SpecialToken>& unk() const { return unk_; }
  // What ends a generated reply: the EOS token and those of generation_config.json, ascending, each once.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  const std::optional<int64_t>& model_max_length() const { return settings_.model_max_length; }

  bool has_chat_template() const { return !templates_.empty(); }
  // The template named "tool_use" if there is one and the chat has tools, else "default". FailedPrecondition when the
  // model has none. The tokenizer owns it.
  absl::StatusOr<const ChatTemplate*> ChatTemplateFor(bool has_tools) const;

  // Changes whenever ids, special tokens or templates may change.
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& directory() const { return directory_; }

 private:
  struct Free {
    void operator()(SlipwayTokenizerHandle* handle) const { slipway_tokenizer_free(handle); }
  };
  explicit Tokenizer(std::string directory) : directory_(std::move(directory)) {}

  absl::Status ReadVocabulary();
  absl::Status FindSpecialTokens();
  absl::Status CompileTemplates();
  absl::StatusOr<EncodedText> EncodeText(std::string_view text, AddSpecialTokens add, bool with_spans) const;

  std::string directory_;
  std::unique_ptr<SlipwayTokenizerHandle, Free> handle_;
  TokenizerSettings settings_;
  int64_t vocab_size_ = 0;
  std::map<int32_t, std::string> special_ids_;
  std::optional<SpecialToken> bos_, eos_, pad_, unk_;
  std::vector<int32_t> stop_ids_;
  std::map<std::string, ChatTemplate> templates_;
  std::string fingerprint_;
};

}  // namespace slipway::engine::tokenizer

#endif  // SLIPWAY_ENGINE_TOKENIZER_TOKENIZER_H_
