#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "engine/tokenizer/abi_bytes.h"

namespace slipway::engine::tokenizer {
namespace {

using internal::AbiBytes;
using internal::BytesOf;

constexpr int64_t kMaxTokenizerBytes = int64_t{512} << 20;

// A length before each text, so that no two lists of texts give the same bytes.
void AddText(Checksum& checksum, std::string_view text) {
  checksum.Update(absl::StrCat(text.size(), ":"));
  checksum.Update(text);
}

// Normalisation may drop bytes (a combining mark that joins its letter): they go to the token before them, so that
// every byte of the text belongs to a token.
void CloseGaps(int64_t text_size, std::vector<TextSpan>& spans) {
  TextSpan* previous = nullptr;
  for (TextSpan& span : spans) {
    if (span.begin == span.end) continue;  // added around the text
    if (previous == nullptr) span.begin = 0;
    if (previous != nullptr && previous->end < span.begin) previous->end = span.begin;
    previous = &span;
  }
  if (previous != nullptr) previous->end = text_size;
}

std::string Fingerprint(std::string_view tokenizer_json, const TokenizerSettings& settings) {
  Checksum checksum;
  AddText(checksum, tokenizer_json);
  for (const auto& [name, text] : settings.special_tokens) {
    AddText(checksum, name);
    AddText(checksum, text);
  }
  for (const auto& [name, text] : settings.chat_templates) {
    AddText(checksum, name);
    AddText(checksum, text);
  }
  return checksum.Digest();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& directory,
                                                                 const std::string& chat_template_path) {
  PosixFileSystem files;
  const std::string path = JoinPath(directory, "tokenizer.json");
  SLIPWAY_ASSIGN_OR_RETURN(const std::string json, files.ReadFile(path, kMaxTokenizerBytes));
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(directory));
  SLIPWAY_ASSIGN_OR_RETURN(tokenizer->settings_, ReadTokenizerSettings(files, directory));
  if (!chat_template_path.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(std::string chat_template, files.ReadFile(chat_template_path, kMaxTokenizerBytes));
    tokenizer->settings_.chat_templates = {{"default", std::move(chat_template)}};
  }

  AbiBytes error;
  SlipwayTokenizerHandle* handle = nullptr;
  const SlipwayTokenizerCode code = slipway_tokenizer_load(BytesOf(json), json.size(), &handle, error.out());
  SLIPWAY_RETURN_IF_ERROR(Annotate(internal::ToStatus(code, error), path));
  tokenizer->handle_.reset(handle);

  SLIPWAY_RETURN_IF_ERROR(Annotate(tokenizer->ReadVocabulary(), path));
  SLIPWAY_RETURN_IF_ERROR(Annotate(tokenizer->FindSpecialTokens(), directory));
  SLIPWAY_RETURN_IF_ERROR(
      Annotate(tokenizer->CompileTemplates(), chat_template_path.empty() ? directory : chat_template_path));
  tokenizer->fingerprint_ = Fingerprint(json, tokenizer->settings_);
  return tokenizer;
}

absl::Status Tokenizer::ReadVocabulary() {
  AbiBytes error;
  AbiBytes out;
  const SlipwayTokenizerCode code = slipway_tokenizer_describe(handle_.get(), out.out(), error.out());
  SLIPWAY_RETURN_IF_ERROR(internal::ToStatus(code, error));
  SLIPWAY_ASSIGN_OR_RETURN(const Json description, ParseJson(out.ToString()));
  vocab_size_ = description["size"].get<int64_t>();
  if (vocab_size_ == 0) return absl::InvalidArgumentError("the vocabulary is empty");
  if (vocab_size_ > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the highest token id is ", vocab_size_ - 1, "; at most 2^31 - 2 is right"));
  }
  for (const Json& token : description["added"]) {
    if (token["special"].get<bool>()) special_ids_[token["id"].get<int32_t>()] = token["content"].get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::FindSpecialTokens() {
  const std::pair<const char*, std::optional<SpecialToken>*> wanted[] = {
      {"bos_token", &bos_}, {"eos_token", &eos_}, {"pad_token", &pad_}, {"unk_token", &unk_}};
  for (const auto& [name, token] : wanted) {
    const auto it = settings_.special_tokens.find(name);
    if (it == settings_.special_tokens.end()) continue;
    const std::optional<int32_t> id = IdOf(it->second);
    if (!id.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is \"", it->second, "\", which tokenizer.json does not contain"));
    }
    *token = SpecialToken{*id, it->second};
  }
  if (eos_.has_value()) stop_ids_.push_back(eos_->id);
  for (const int64_t id : settings_.generation_eos_ids) {
    if (id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("generation_config.json: eos_token_id ", id, " is no token id"));
    }
    stop_ids_.push_back(static_cast<int32_t>(id));
  }
  std::sort(stop_ids_.begin(), stop_ids_.end());
  stop_ids_.erase(std::unique(stop_ids_.begin(), stop_ids_.end()), stop_ids_.end());
  return absl::OkStatus();
}

absl::Status Tokenizer::CompileTemplates() {
  Json special_tokens = Json::object();
  for (const auto& [name, text] : settings_.special_tokens) special_tokens[name] = text;
  for (const auto& [name, source] : settings_.chat_templates) {
    absl::StatusOr<ChatTemplate> compiled = ChatTemplate::Compile(source, special_tokens);
    SLIPWAY_RETURN_IF_ERROR(Annotate(compiled.status(), absl::StrCat("template '", name, "'")));
    templates_.emplace(name, *std::move(compiled));
  }
  return absl::OkStatus();
}

absl::StatusOr<const ChatTemplate*> Tokenizer::ChatTemplateFor(bool has_tools) const {
  if (const auto it = templates_.find("tool_use"); has_tools && it != templates_.end()) return &it->second;
  if (const auto it = templates_.find("default"); it != templates_.end()) return &it->second;
  return absl::FailedPreconditionError(absl::StrCat(
      directory_,
      " has no chat template: neither chat_template.jinja nor tokenizer_config.json's chat_template gives one"));
}

absl::StatusOr<EncodedText> Tokenizer::EncodeText(std::string_view text, AddSpecialTokens add, bool with_spans) const {
  AbiBytes error;
  SlipwayEncoding encoding;
  const SlipwayTokenizerCode code =
      slipway_tokenizer_encode(handle_.get(), BytesOf(text), text.size(), add == AddSpecialTokens::kAsConfigured,
                               with_spans, &encoding, error.out());
  SLIPWAY_RETURN_IF_ERROR(internal::ToStatus(code, error));
  EncodedText encoded;
  encoded.ids.assign(encoding.ids, encoding.ids + encoding.count);
  if (with_spans) {
    encoded.spans.reserve(encoding.count);
    for (size_t i = 0; i < encoding.count; ++i) {
      encoded.spans.push_back(
          {static_cast<int64_t>(encoding.offsets[2 * i]), static_cast<int64_t>(encoding.offsets[2 * i + 1])});
    }
    CloseGaps(static_cast<int64_t>(text.size()), encoded.spans);
  }
  slipway_encoding_free(encoding);
  return encoded;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, AddSpecialTokens add) const {
  SLIPWAY_ASSIGN_OR_RETURN(EncodedText encoded, EncodeText(text, add, /*with_spans=*/false));
  return std::move(encoded.ids);
}

absl::StatusOr<EncodedText> Tokenizer::EncodeWithSpans(std::string_view text, AddSpecialTokens add) const {
  return EncodeText(text, add, /*with_spans=*/true);
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size_, " tokens"));
    }
  }
  AbiBytes error;
  AbiBytes out;
  const SlipwayTokenizerCode code =
      slipway_tokenizer_decode(handle_.get(), reinterpret_cast<const uint32_t*>(ids.data()), ids.size(),
                               skip_special_tokens, out.out(), error.out());
  SLIPWAY_RETURN_IF_ERROR(internal::ToStatus(code, error));
  return out.ToString();
}

std::optional<int32_t> Tokenizer::IdOf(std::string_view token) const {
  const int64_t id = slipway_tokenizer_token_to_id(handle_.get(), BytesOf(token), token.size());
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

absl::StatusOr<std::string> Tokenizer::TokenOf(int32_t id) const {
  AbiBytes error;
  AbiBytes out;
  if (id < 0 ||
      slipway_tokenizer_id_to_token(handle_.get(), static_cast<uint32_t>(id), out.out(), error.out()) != kSlipwayOk) {
    return absl::NotFoundError(absl::StrCat("the tokenizer has no token with id ", id));
  }
  return out.ToString();
}

}  // namespace slipway::engine::tokenizer
