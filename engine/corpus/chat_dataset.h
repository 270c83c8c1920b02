// A chat file (JSONL, see chat_messages.h) as samples for fine-tuning. The file is read and tokenised once, on several
// threads, and held in memory as ids and a mask: 5 bytes a token.
#ifndef SLIPWAY_ENGINE_CORPUS_CHAT_DATASET_H_
#define SLIPWAY_ENGINE_CORPUS_CHAT_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/corpus/chat_encoder.h"
#include "engine/corpus/sample_set.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::engine::corpus {

// What happens to a chat of more than seq_length tokens: cut on the right, or left out.
enum class Overlong { kTruncate, kDrop };

struct ChatDatasetOptions {
  std::string path;
  int64_t seq_length = 0;
  Overlong overlong = Overlong::kTruncate;
  int workers = 0;  // 0: one a core
};

struct DroppedLine {
  int64_t line = 0;
  std::string reason;
};

// What became of the file. Tokens are counted after cutting.
struct ChatReport {
  std::string path;
  int64_t lines = 0;  // that are not blank
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t loss_tokens = 0;     // that some input predicts
  int64_t truncated = 0;       // samples
  int64_t longest_tokens = 0;  // before cutting
  int64_t longest_line = 0;
  int64_t dropped = 0;                     // lines
  std::vector<DroppedLine> dropped_lines;  // in order; the first kMaxDroppedLines
  static constexpr size_t kMaxDroppedLines = 100;

  // "chat.jsonl:3: messages[1]: content is 42; expected a text", one for each of dropped_lines, and how many more.
  std::vector<std::string> Notes() const;
};

class ChatDataset final : public SampleSet {
 public:
  // Lines that are no chat, or have nothing to train within seq_length, are left out and reported. InvalidArgument,
  // with the first reasons, when no line is left; errors of reading the file as they are. `files` must outlive the
  // call.
  static absl::StatusOr<std::shared_ptr<const ChatDataset>> Load(FileSystem& files,
                                                                 std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                                                 const ChatDatasetOptions& options);

  int64_t size() const override { return report_.samples; }
  absl::StatusOr<Sample> Get(int64_t item) const override;
  absl::StatusOr<double> LossWeight(int64_t item) const override;
  int64_t vocab_bound() const override { return vocab_bound_; }

  const ChatReport& report() const { return report_; }
  // The line that an item came from.
  int64_t LineOf(int64_t item) const { return lines_[static_cast<size_t>(item)]; }

 private:
  ChatDataset() = default;
  // What a line became, still in order of lines.
  void Add(int64_t line, const absl::StatusOr<EncodedChat>& chat, const ChatDatasetOptions& options);
  void Drop(int64_t line, std::string reason);

  std::vector<int32_t> ids_;
  std::vector<uint8_t> trained_;
  std::vector<int64_t> starts_ = {0};  // of each item in ids_, and the end
  std::vector<int32_t> loss_tokens_;
  std::vector<int64_t> lines_;
  int64_t vocab_bound_ = 0;
  ChatReport report_;
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_CHAT_DATASET_H_
