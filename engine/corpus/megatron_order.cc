#include "engine/corpus/megatron_order.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

// Each sample has one token more than seq_length: the last one's label.
constexpr int64_t kExtraToken = 1;

// How many epochs are laid out, and whether the last one, of which only a little is used, is shuffled by itself.
struct EpochPlan {
  int64_t epochs = 1;
  int64_t samples = 0;
  int64_t samples_before_last = 0;  // only if separate_last
  bool separate_last = false;
};

EpochPlan PlanEpochs(int64_t tokens, const MegatronOrderOptions& options) {
  const int64_t length = options.seq_length;
  const int64_t wanted = options.num_samples * length + kExtraToken;
  EpochPlan plan;
  plan.epochs = std::max<int64_t>(1, (wanted + tokens - 1) / tokens);
  plan.samples = (plan.epochs * tokens - kExtraToken) / length;
  if (plan.epochs > 1) {
    plan.samples_before_last = ((plan.epochs - 1) * tokens - kExtraToken) / length;
    const int64_t from_last = options.num_samples - plan.samples_before_last;
    const int64_t a_whole_epoch = (tokens - kExtraToken) / length;
    plan.separate_last = from_last < static_cast<int64_t>(0.80 * static_cast<double>(a_whole_epoch));
  }
  return plan;
}

std::vector<int32_t> DocumentIndex(SequenceRange range, const EpochPlan& plan, NumpyShuffler& shuffler) {
  const int64_t documents = range.end - range.begin;
  std::vector<int32_t> index(static_cast<size_t>(plan.epochs * documents));
  for (int64_t i = 0; i < plan.epochs * documents; ++i) {
    index[static_cast<size_t>(i)] = static_cast<int32_t>(range.begin + i % documents);
  }
  int32_t* const end = index.data() + index.size();
  int32_t* const last_epoch = plan.separate_last ? end - documents : end;
  shuffler.Shuffle(index.data(), last_epoch);
  if (plan.separate_last) shuffler.Shuffle(last_epoch, end);
  return index;
}

// Walks over the documents in their order and notes where each sample begins.
void LayOutSamples(const std::function<int32_t(int64_t)>& length_of, int64_t seq_length, int64_t samples,
                   MegatronIndices& indices) {
  indices.sample_documents.reserve(static_cast<size_t>(samples) + 1);
  indices.sample_offsets.reserve(static_cast<size_t>(samples) + 1);
  size_t place = 0;
  int64_t offset = 0;
  for (int64_t sample = 0;; ++sample) {
    indices.sample_documents.push_back(static_cast<int64_t>(place));
    indices.sample_offsets.push_back(static_cast<int32_t>(offset));
    if (sample == samples) return;
    int64_t remaining = seq_length + kExtraToken;
    while (true) {
      const int64_t left = length_of(indices.document_index[place]) - offset;
      if (left >= remaining) {
        offset += remaining - kExtraToken;  // the extra token is the next sample's first
        break;
      }
      remaining -= left;
      ++place;  // there is a next one: `samples` counts what the tokens suffice for
      offset = 0;
    }
  }
}

std::vector<uint32_t> ShuffleIndex(const EpochPlan& plan, NumpyShuffler& shuffler) {
  std::vector<uint32_t> index(static_cast<size_t>(plan.samples));
  std::iota(index.begin(), index.end(), 0u);
  uint32_t* const end = index.data() + index.size();
  uint32_t* const last_epoch = plan.separate_last ? index.data() + plan.samples_before_last : end;
  shuffler.Shuffle(index.data(), last_epoch);
  if (plan.separate_last) shuffler.Shuffle(last_epoch, end);
  return index;
}

}  // namespace

struct NumpyShuffler::Generator {
  explicit Generator(uint32_t seed) : engine(seed) {}
  // The 32-bit outputs of numpy's legacy generator, masked and drawn again until they fit.
  uint32_t Below(uint64_t limit_inclusive) {
    uint32_t mask = static_cast<uint32_t>(limit_inclusive);
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    uint32_t value = static_cast<uint32_t>(engine()) & mask;
    while (value > limit_inclusive) value = static_cast<uint32_t>(engine()) & mask;
    return value;
  }
  std::mt19937 engine;
};

NumpyShuffler::NumpyShuffler(uint32_t seed) : generator_(std::make_unique<Generator>(seed)) {}
NumpyShuffler::~NumpyShuffler() = default;

template <typename T>
void NumpyShuffler::ShuffleRange(T* begin, T* end) {
  for (int64_t i = end - begin - 1; i > 0; --i) std::swap(begin[i], begin[generator_->Below(static_cast<uint64_t>(i))]);
}
void NumpyShuffler::Shuffle(int32_t* begin, int32_t* end) { ShuffleRange(begin, end); }
void NumpyShuffler::Shuffle(uint32_t* begin, uint32_t* end) { ShuffleRange(begin, end); }

absl::StatusOr<MegatronIndices> BuildMegatronIndices(const std::function<int32_t(int64_t)>& length_of,
                                                     SequenceRange range, const MegatronOrderOptions& options) {
  int64_t tokens = 0;
  for (int64_t s = range.begin; s < range.end; ++s) tokens += length_of(s);
  if (tokens == 0) return absl::InvalidArgumentError("the sequences hold no tokens");
  if (options.num_samples < 1 || options.seq_length < 1) {
    return absl::InvalidArgumentError(StrCat("megatron order: ", options.num_samples, " samples of ",
                                             options.seq_length, " tokens; expected at least 1 of each"));
  }
  constexpr int64_t kMaxSamples = int64_t{std::numeric_limits<uint32_t>::max()} - 1;
  if (options.num_samples >= kMaxSamples || options.num_samples > (int64_t{1} << 62) / (options.seq_length + tokens)) {
    return absl::InvalidArgumentError(StrCat("megatron order: ", options.num_samples, " samples are too many"));
  }
  const EpochPlan plan = PlanEpochs(tokens, options);
  if (range.end > std::numeric_limits<int32_t>::max() || plan.samples >= kMaxSamples ||
      plan.epochs > (int64_t{1} << 34) / (range.end - range.begin)) {
    return absl::InvalidArgumentError(StrCat("megatron order: ", plan.epochs, " epochs of ", range.end - range.begin,
                                             " sequences are too many to number"));
  }
  NumpyShuffler shuffler(options.seed);
  MegatronIndices indices;
  indices.document_index = DocumentIndex(range, plan, shuffler);
  LayOutSamples(length_of, options.seq_length, plan.samples, indices);
  indices.shuffle_index = ShuffleIndex(plan, shuffler);
  return indices;
}

}  // namespace slipway::engine::corpus
