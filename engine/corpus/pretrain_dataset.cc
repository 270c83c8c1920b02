#include "engine/corpus/pretrain_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/corpus/index_cache.h"
#include "engine/corpus/megatron_order.h"
#include "engine/corpus/token_scan.h"

namespace slipway::engine::corpus {
namespace {

double LossWeightOf(const Sample& sample) { return std::accumulate(sample.weights.begin(), sample.weights.end(), 0.0); }

class RowSamples final : public SampleSet {
 public:
  explicit RowSamples(TokenRow row) : row_(std::move(row)), length_(row_.options().seq_length) {}

  int64_t size() const override { return (row_.tokens() - 1) / length_; }
  int64_t vocab_bound() const override { return row_.options().vocab_size; }

  absl::StatusOr<Sample> Get(int64_t item) const override {
    SLIPWAY_RETURN_IF_ERROR(row_.CheckUnchanged());
    std::vector<int32_t> tokens;
    SLIPWAY_RETURN_IF_ERROR(row_.Append(item * length_, length_ + 1, tokens));
    return row_.MakeSample(std::move(tokens));
  }

  absl::StatusOr<double> LossWeight(int64_t item) const override {
    if (!row_.options().eod_without_loss.has_value()) return static_cast<double>(length_);
    SLIPWAY_ASSIGN_OR_RETURN(const Sample sample, Get(item));
    return LossWeightOf(sample);
  }

 private:
  TokenRow row_;
  int64_t length_;
};

class MegatronSamples final : public SampleSource {
 public:
  MegatronSamples(TokenRow row, MegatronIndices indices) : row_(std::move(row)), indices_(std::move(indices)) {}

  int64_t epoch_size() const override { return indices_.size(); }
  int64_t vocab_bound() const override { return row_.options().vocab_size; }

  absl::StatusOr<Sample> Get(int64_t k) const override {
    if (k < 0 || k >= indices_.size()) {
      return absl::OutOfRangeError(StrCat(row_.options().prefix, ": sample ", k,
                                          " of the megatron order was asked for, which has ", indices_.size(),
                                          "; requested_samples fixes its length"));
    }
    SLIPWAY_RETURN_IF_ERROR(row_.CheckUnchanged());
    const size_t sample = indices_.shuffle_index[static_cast<size_t>(k)];
    const int64_t first = indices_.sample_documents[sample];
    const int64_t last = indices_.sample_documents[sample + 1];
    std::vector<int32_t> tokens;
    for (int64_t place = first; place <= last; ++place) {
      const int32_t sequence = indices_.document_index[static_cast<size_t>(place)];
      const int64_t offset = place == first ? indices_.sample_offsets[sample] : 0;
      // The sample reads on to the token where the next one begins.
      const int64_t end =
          place == last ? indices_.sample_offsets[sample + 1] + int64_t{1} : row_.dataset().SequenceLength(sequence);
      SLIPWAY_RETURN_IF_ERROR(row_.AppendFromSequence(sequence, offset, end - offset, tokens));
    }
    return row_.MakeSample(std::move(tokens));
  }

  absl::StatusOr<double> LossWeight(int64_t k) const override {
    if (!row_.options().eod_without_loss.has_value() && k >= 0 && k < indices_.size()) {
      return static_cast<double>(row_.options().seq_length);
    }
    SLIPWAY_ASSIGN_OR_RETURN(const Sample sample, Get(k));
    return LossWeightOf(sample);
  }

 private:
  TokenRow row_;
  MegatronIndices indices_;
};

}  // namespace

absl::StatusOr<TokenRow> TokenRow::Open(FileSystem& files, const PretrainOptions& options) {
  if (options.seq_length < 1 || options.vocab_size < 1) {
    return absl::InvalidArgumentError(StrCat(options.prefix, ": seq_length is ", options.seq_length, ", vocab_size is ",
                                             options.vocab_size, "; expected at least 1"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(format::IndexedDataset dataset, format::IndexedDataset::Open(files, options.prefix));
  TokenRow row;
  row.files_ = &files;
  row.options_ = options;
  row.dataset_ = std::make_shared<const format::IndexedDataset>(std::move(dataset));
  row.sequences_ = RangeOf(options.split, options.part, row.dataset_->sequence_count());
  if (row.sequences_.begin >= row.sequences_.end) {
    return absl::InvalidArgumentError(StrCat(options.prefix, ": the ", SplitPartName(options.part), " share of its ",
                                             row.dataset_->sequence_count(), " sequences is empty"));
  }
  const int64_t last = row.sequences_.end - 1;
  row.begin_ = row.dataset_->SequenceStart(row.sequences_.begin);
  row.end_ = row.dataset_->SequenceStart(last) + row.dataset_->SequenceLength(last);
  return row;
}

absl::Status TokenRow::AppendFromSequence(int64_t sequence, int64_t offset, int64_t count,
                                          std::vector<int32_t>& out) const {
  const size_t old_size = out.size();
  out.resize(old_size + static_cast<size_t>(count));
  const absl::Span<int32_t> fresh = absl::MakeSpan(out).subspan(old_size);
  SLIPWAY_RETURN_IF_ERROR(dataset_->Read(sequence, offset, fresh));
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (fresh[i] >= options_.vocab_size) {
      return BadTokenId(*dataset_, sequence, offset + static_cast<int64_t>(i), fresh[i], options_.vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status TokenRow::Append(int64_t first, int64_t count, std::vector<int32_t>& out) const {
  int64_t sequence = dataset_->SequenceAt(begin_ + first);
  int64_t offset = begin_ + first - dataset_->SequenceStart(sequence);
  for (; count > 0; ++sequence) {
    const int64_t part = std::min(count, dataset_->SequenceLength(sequence) - offset);
    SLIPWAY_RETURN_IF_ERROR(AppendFromSequence(sequence, offset, part, out));
    count -= part;
    offset = 0;
  }
  return absl::OkStatus();
}

Sample TokenRow::MakeSample(std::vector<int32_t> tokens) const {
  Sample sample;
  sample.labels.assign(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  sample.weights.assign(tokens.size(), 1.f);
  if (options_.eod_without_loss.has_value()) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == *options_.eod_without_loss) sample.weights[i] = 0.f;
    }
  }
  sample.tokens = std::move(tokens);
  return sample;
}

absl::StatusOr<std::shared_ptr<const SampleSet>> OpenPretrainSamples(FileSystem& files,
                                                                     const PretrainOptions& options) {
  SLIPWAY_ASSIGN_OR_RETURN(TokenRow row, TokenRow::Open(files, options));
  if (row.tokens() < options.seq_length + 1) {
    return absl::InvalidArgumentError(StrCat(options.prefix, ": the ", SplitPartName(options.part), " share has ",
                                             row.tokens(),
                                             " tokens; one sample needs seq_length + 1 = ", options.seq_length + 1));
  }
  return std::make_shared<RowSamples>(std::move(row));
}

absl::StatusOr<std::shared_ptr<const SampleSource>> OpenPretrainInMegatronOrder(FileSystem& files,
                                                                                const PretrainOptions& options,
                                                                                const MegatronOptions& order) {
  if (order.seed > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(StrCat("seed is ", order.seed, "; the megatron order takes at most 4294967295"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(TokenRow row, TokenRow::Open(files, options));
  const MegatronOrderOptions build{.num_samples = order.requested_samples,
                                   .seq_length = options.seq_length,
                                   .seed = static_cast<uint32_t>(order.seed)};
  std::string key;
  if (!order.cache_directory.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(key, IndexCacheKey(files, options.prefix,
                                                StrCat(row.sequences().begin, " ", row.sequences().end, " ",
                                                       build.num_samples, " ", build.seq_length, " ", build.seed)));
  }
  absl::StatusOr<MegatronIndices> indices = CachedIndices(files, order.cache_directory, key, [&] {
    return BuildMegatronIndices([&](int64_t s) { return static_cast<int32_t>(row.dataset().SequenceLength(s)); },
                                row.sequences(), build);
  });
  SLIPWAY_RETURN_IF_ERROR(Annotate(indices.status(), options.prefix));
  return std::make_shared<MegatronSamples>(std::move(row), *std::move(indices));
}

}  // namespace slipway::engine::corpus
