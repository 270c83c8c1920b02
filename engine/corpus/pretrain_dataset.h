// An indexed dataset (.bin/.idx) as samples for pretraining: seq_length tokens and, as labels, the tokens that follow.
#ifndef SLIPWAY_ENGINE_CORPUS_PRETRAIN_DATASET_H_
#define SLIPWAY_ENGINE_CORPUS_PRETRAIN_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/corpus/sample_set.h"
#include "engine/corpus/split.h"
#include "engine/format/indexed_dataset.h"

namespace slipway::engine::corpus {

struct PretrainOptions {
  std::string prefix;
  SplitShares split = {1, 0, 0};
  SplitPart part = SplitPart::kTraining;
  int64_t seq_length = 0;
  // The model's ids: one at or above it is an error that names the dataset, the document and the id.
  int64_t vocab_size = 0;
  // No loss where the input token is this one; unset: loss everywhere.
  std::optional<int32_t> eod_without_loss;
};

// The tokens of one part of a dataset as one long row, in file order. Immutable, thread-safe. The file system outlives
// it, and what is made from it.
class TokenRow {
 public:
  static absl::StatusOr<TokenRow> Open(FileSystem& files, const PretrainOptions& options);

  int64_t tokens() const { return end_ - begin_; }
  SequenceRange sequences() const { return sequences_; }
  const format::IndexedDataset& dataset() const { return *dataset_; }
  const PretrainOptions& options() const { return options_; }

  // DataLoss when the files are no longer those that were opened.
  absl::Status CheckUnchanged() const { return dataset_->CheckUnchanged(*files_); }
  // Appends `count` tokens from place `first` of the row.
  absl::Status Append(int64_t first, int64_t count, std::vector<int32_t>& out) const;
  // Appends `count` tokens of a sequence from `offset` on.
  absl::Status AppendFromSequence(int64_t sequence, int64_t offset, int64_t count, std::vector<int32_t>& out) const;
  // seq_length + 1 tokens as a sample.
  Sample MakeSample(std::vector<int32_t> tokens) const;

 private:
  TokenRow() = default;

  FileSystem* files_ = nullptr;
  std::shared_ptr<const format::IndexedDataset> dataset_;
  PretrainOptions options_;
  SequenceRange sequences_;
  int64_t begin_ = 0;  // tokens of the dataset before the row
  int64_t end_ = 0;
};

// Sample k holds tokens [k * seq_length, (k + 1) * seq_length] of the row; what is left over at the end is not read.
// InvalidArgument when there is not one whole sample, or the part has no sequences.
absl::StatusOr<std::shared_ptr<const SampleSet>> OpenPretrainSamples(FileSystem& files, const PretrainOptions& options);

struct MegatronOptions {
  int64_t requested_samples = 0;
  uint64_t seed = 1234;
  std::string cache_directory;  // empty: the indices are built at every start
};

// Megatron-LM's order. Reading ends where its indices end: sample k at or behind epoch_size(), which is at least
// requested_samples, is OutOfRange.
absl::StatusOr<std::shared_ptr<const SampleSource>> OpenPretrainInMegatronOrder(FileSystem& files,
                                                                                const PretrainOptions& options,
                                                                                const MegatronOptions& order);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_PRETRAIN_DATASET_H_
