#include "engine/tokenizer/incremental_decoder.h"

#include "absl/strings/match.h"
#include "common/status_macros.h"

namespace slipway::engine::tokenizer {
namespace {

constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";
// A character has at most four bytes: when this many tokens have not completed one, they never will.
constexpr size_t kMaxHeldBack = 8;

}  // namespace

absl::StatusOr<std::string> IncrementalDecoder::Push(int32_t id) {
  window_.push_back(id);
  absl::StatusOr<std::string> text = tokenizer_->Decode(window_, skip_special_tokens_);
  if (!text.ok()) {
    window_.pop_back();
    return text.status();
  }
  const bool unfinished = absl::EndsWith(*text, kReplacementCharacter) && window_.size() - printed_ids_ < kMaxHeldBack;
  if (text->size() <= printed_text_.size() || unfinished) return std::string();
  std::string fresh = text->substr(printed_text_.size());
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(printed_ids_));
  printed_ids_ = window_.size();
  SLIPWAY_ASSIGN_OR_RETURN(printed_text_, tokenizer_->Decode(window_, skip_special_tokens_));
  return fresh;
}

absl::StatusOr<std::string> IncrementalDecoder::Finish() {
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, tokenizer_->Decode(window_, skip_special_tokens_));
  std::string rest = text.size() > printed_text_.size() ? text.substr(printed_text_.size()) : std::string();
  window_.clear();
  printed_ids_ = 0;
  printed_text_.clear();
  return rest;
}

}  // namespace slipway::engine::tokenizer
