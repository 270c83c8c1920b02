// What is in a dataset, for a person to look at before a job is started.
#ifndef SLIPWAY_ENGINE_CORPUS_INSPECT_H_
#define SLIPWAY_ENGINE_CORPUS_INSPECT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/format/indexed_dataset.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::engine::corpus {

// A run of tokens with the same mask.
struct TextPiece {
  std::string text;
  bool trained = false;
};

struct ShownChat {
  int64_t line = 0;
  int64_t tokens = 0;
  std::vector<TextPiece> pieces;  // control tokens included
};

struct ChatInspection {
  ChatReport report;
  std::vector<ShownChat> samples;
};

// Shows the first `shown` samples.
absl::StatusOr<ChatInspection> InspectChatFile(FileSystem& files, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               const ChatDatasetOptions& options, int64_t shown);

struct ShownDocument {
  int64_t document = 0;
  int64_t tokens = 0;
  std::string text;  // of the first kShownTokens
  static constexpr int64_t kShownTokens = 256;
};

struct IndexedInspection {
  format::TokenType token_type = format::TokenType::kInt32;
  int64_t sequences = 0;
  int64_t documents = 0;
  int64_t empty_documents = 0;
  int64_t tokens = 0;
  int64_t shortest_sequence = 0;
  int64_t longest_sequence = 0;
  std::vector<ShownDocument> samples;
};

// Shows the first `shown` documents that are not empty. `tokenizer` may be null: then no texts.
absl::StatusOr<IndexedInspection> InspectIndexedDataset(FileSystem& files, const std::string& prefix,
                                                        const tokenizer::Tokenizer* tokenizer, int64_t shown);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_INSPECT_H_
