#include "engine/corpus/inspect.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

absl::StatusOr<std::vector<TextPiece>> PiecesOf(const Sample& sample, const tokenizer::Tokenizer& tokenizer) {
  // Token i is trained when the one before it predicts it.
  const auto trained = [&](size_t i) { return i > 0 && sample.weights[i - 1] > 0; };
  std::vector<TextPiece> pieces;
  for (size_t begin = 0; begin < sample.tokens.size();) {
    size_t end = begin + 1;
    while (end < sample.tokens.size() && trained(end) == trained(begin)) ++end;
    SLIPWAY_ASSIGN_OR_RETURN(std::string text,
                             tokenizer.Decode(absl::MakeSpan(sample.tokens).subspan(begin, end - begin),
                                              /*skip_special_tokens=*/false));
    pieces.push_back({std::move(text), trained(begin)});
    begin = end;
  }
  return pieces;
}

absl::StatusOr<ShownDocument> ShowDocument(const format::IndexedDataset& dataset, int64_t document,
                                           const tokenizer::Tokenizer& tokenizer) {
  ShownDocument shown{.document = document};
  std::vector<int32_t> ids;
  for (int64_t s = dataset.DocumentStart(document); s < dataset.DocumentStart(document + 1); ++s) {
    const int64_t length = dataset.SequenceLength(s);
    const int64_t wanted = std::min(length, ShownDocument::kShownTokens - static_cast<int64_t>(ids.size()));
    shown.tokens += length;
    const size_t old_size = ids.size();
    ids.resize(old_size + static_cast<size_t>(wanted));
    SLIPWAY_RETURN_IF_ERROR(dataset.Read(s, 0, absl::MakeSpan(ids).subspan(old_size)));
  }
  absl::StatusOr<std::string> text = tokenizer.Decode(ids, /*skip_special_tokens=*/false);
  SLIPWAY_RETURN_IF_ERROR(Annotate(text.status(), StrCat(dataset.prefix(), ": document ", document)));
  shown.text = *std::move(text);
  return shown;
}

}  // namespace

absl::StatusOr<ChatInspection> InspectChatFile(FileSystem& files, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               const ChatDatasetOptions& options, int64_t shown) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::shared_ptr<const ChatDataset> dataset,
                           ChatDataset::Load(files, tokenizer, options));
  ChatInspection inspection;
  inspection.report = dataset->report();
  for (int64_t i = 0; i < std::min(shown, dataset->size()); ++i) {
    SLIPWAY_ASSIGN_OR_RETURN(const Sample sample, dataset->Get(i));
    ShownChat chat{.line = dataset->LineOf(i), .tokens = static_cast<int64_t>(sample.tokens.size())};
    SLIPWAY_ASSIGN_OR_RETURN(chat.pieces, PiecesOf(sample, *tokenizer));
    inspection.samples.push_back(std::move(chat));
  }
  return inspection;
}

absl::StatusOr<IndexedInspection> InspectIndexedDataset(FileSystem& files, const std::string& prefix,
                                                        const tokenizer::Tokenizer* tokenizer, int64_t shown) {
  SLIPWAY_ASSIGN_OR_RETURN(const format::IndexedDataset dataset, format::IndexedDataset::Open(files, prefix));
  IndexedInspection inspection;
  inspection.token_type = dataset.token_type();
  inspection.sequences = dataset.sequence_count();
  inspection.documents = dataset.document_count();
  inspection.tokens = dataset.token_count();
  for (int64_t s = 0; s < dataset.sequence_count(); ++s) {
    const int64_t length = dataset.SequenceLength(s);
    inspection.shortest_sequence = s == 0 ? length : std::min(inspection.shortest_sequence, length);
    inspection.longest_sequence = std::max(inspection.longest_sequence, length);
  }
  for (int64_t d = 0; d < dataset.document_count(); ++d) {
    if (dataset.DocumentStart(d) == dataset.DocumentStart(d + 1)) {
      ++inspection.empty_documents;
    } else if (tokenizer != nullptr && static_cast<int64_t>(inspection.samples.size()) < shown) {
      SLIPWAY_ASSIGN_OR_RETURN(ShownDocument document, ShowDocument(dataset, d, *tokenizer));
      inspection.samples.push_back(std::move(document));
    }
  }
  return inspection;
}

}  // namespace slipway::engine::corpus
