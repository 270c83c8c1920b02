#include "engine/corpus/chat_dataset.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/chat_messages.h"
#include "engine/corpus/jsonl.h"
#include "engine/corpus/parallel_for.h"

namespace slipway::engine::corpus {
namespace {

// Lines tokenised at once: enough to keep the workers busy, few enough that memory stays small.
constexpr size_t kBatchLines = 2048;
constexpr size_t kBatchBytes = size_t{32} << 20;

absl::StatusOr<EncodedChat> EncodeLine(const ChatEncoder& encoder, const JsonlLine& line) {
  SLIPWAY_ASSIGN_OR_RETURN(const tokenizer::ChatInput chat, ParseChatLine(line.text));
  return encoder.Encode(chat);
}

// False when the file has ended and `lines` is empty.
absl::StatusOr<bool> ReadBatch(JsonlReader& reader, std::vector<JsonlLine>& lines) {
  lines.clear();
  size_t bytes = 0;
  while (lines.size() < kBatchLines && bytes < kBatchBytes) {
    JsonlLine line;
    SLIPWAY_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) break;
    bytes += line.text.size();
    lines.push_back(std::move(line));
  }
  return !lines.empty();
}

}  // namespace

std::vector<std::string> ChatReport::Notes() const {
  std::vector<std::string> notes;
  for (const DroppedLine& drop : dropped_lines) notes.push_back(StrCat(path, ":", drop.line, ": ", drop.reason));
  const int64_t more = dropped - static_cast<int64_t>(dropped_lines.size());
  if (more > 0) notes.push_back(StrCat("… and ", more, " more lines"));
  return notes;
}

absl::StatusOr<std::shared_ptr<const ChatDataset>> ChatDataset::Load(
    FileSystem& files, std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const ChatDatasetOptions& options) {
  SLIPWAY_ASSIGN_OR_RETURN(const ChatEncoder encoder, ChatEncoder::Create(std::move(tokenizer)));
  SLIPWAY_ASSIGN_OR_RETURN(JsonlReader reader, JsonlReader::Open(files, options.path));
  std::shared_ptr<ChatDataset> dataset(new ChatDataset());
  dataset->report_.path = options.path;
  std::vector<JsonlLine> lines;
  while (true) {
    SLIPWAY_ASSIGN_OR_RETURN(const bool more, ReadBatch(reader, lines));
    if (!more) break;
    std::vector<std::optional<absl::StatusOr<EncodedChat>>> chats(lines.size());
    ParallelFor(static_cast<int64_t>(lines.size()), WorkerCount(options.workers),
                [&](int64_t i) { chats[static_cast<size_t>(i)] = EncodeLine(encoder, lines[static_cast<size_t>(i)]); });
    for (size_t i = 0; i < lines.size(); ++i) dataset->Add(lines[i].number, *chats[i], options);
  }
  const ChatReport& report = dataset->report_;
  if (report.lines == 0) return absl::InvalidArgumentError(StrCat(options.path, " has no lines"));
  if (report.samples == 0) {
    constexpr size_t kShown = 3;
    std::vector<std::string> notes = report.Notes();
    if (notes.size() > kShown) notes.resize(kShown);
    return absl::InvalidArgumentError(StrCat(options.path, ": no trainable tokens: all ", report.lines,
                                             " lines were left out; ", absl::StrJoin(notes, "; ")));
  }
  return dataset;
}

void ChatDataset::Drop(int64_t line, std::string reason) {
  ++report_.dropped;
  if (report_.dropped_lines.size() < ChatReport::kMaxDroppedLines) {
    report_.dropped_lines.push_back({line, std::move(reason)});
  }
}

void ChatDataset::Add(int64_t line, const absl::StatusOr<EncodedChat>& chat, const ChatDatasetOptions& options) {
  ++report_.lines;
  if (!chat.ok()) return Drop(line, std::string(chat.status().message()));
  const int64_t full = static_cast<int64_t>(chat->ids.size());
  if (full > report_.longest_tokens) {
    report_.longest_tokens = full;
    report_.longest_line = line;
  }
  const bool overlong = full > options.seq_length;
  if (overlong && options.overlong == Overlong::kDrop) {
    return Drop(line, StrCat("it has ", full, " tokens; seq_length is ", options.seq_length));
  }
  const int64_t kept = std::min(full, options.seq_length);
  // Nothing predicts the first token.
  const int64_t loss =
      kept < 2 ? 0 : std::accumulate(chat->trained.begin() + 1, chat->trained.begin() + kept, int64_t{0});
  if (loss == 0) {
    return Drop(line, overlong ? StrCat("no trainable tokens among the first ", options.seq_length, " of its ", full,
                                        " (seq_length)")
                               : std::string("no trainable tokens"));
  }
  ids_.insert(ids_.end(), chat->ids.begin(), chat->ids.begin() + kept);
  trained_.insert(trained_.end(), chat->trained.begin(), chat->trained.begin() + kept);
  starts_.push_back(static_cast<int64_t>(ids_.size()));
  loss_tokens_.push_back(static_cast<int32_t>(loss));
  lines_.push_back(line);
  vocab_bound_ = std::max<int64_t>(vocab_bound_, *std::max_element(ids_.end() - kept, ids_.end()) + int64_t{1});
  ++report_.samples;
  report_.tokens += kept;
  report_.loss_tokens += loss;
  if (overlong) ++report_.truncated;
}

absl::StatusOr<Sample> ChatDataset::Get(int64_t item) const {
  const int64_t begin = starts_[static_cast<size_t>(item)];
  const int64_t end = starts_[static_cast<size_t>(item) + 1];
  Sample sample;
  sample.tokens.assign(ids_.begin() + begin, ids_.begin() + end);
  // The last token predicts nothing that is known; its label is itself, at weight 0.
  sample.labels.assign(ids_.begin() + begin + 1, ids_.begin() + end);
  sample.labels.push_back(sample.tokens.back());
  sample.weights.assign(trained_.begin() + begin + 1, trained_.begin() + end);
  sample.weights.push_back(0);
  return sample;
}

absl::StatusOr<double> ChatDataset::LossWeight(int64_t item) const { return loss_tokens_[static_cast<size_t>(item)]; }

}  // namespace slipway::engine::corpus
