// Megatron-LM's sample order (megatron/core/datasets/gpt_dataset.py and helpers.cpp): documents shuffled over all
// epochs and laid end to end, cut into samples, the samples shuffled; by NumPy's legacy generator, so that the same
// seed gives the same order as there. "Document" means a sequence of the indexed dataset here, as it does there.
#ifndef SLIPWAY_ENGINE_CORPUS_MEGATRON_ORDER_H_
#define SLIPWAY_ENGINE_CORPUS_MEGATRON_ORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/corpus/split.h"

namespace slipway::engine::corpus {

struct MegatronOrderOptions {
  int64_t num_samples = 0;  // requested; the order may hold a few more
  int64_t seq_length = 0;
  uint32_t seed = 1234;
};

struct MegatronIndices {
  std::vector<int32_t> document_index;  // sequences in reading order, all epochs
  // Where sample i begins: a place in document_index and a token of that sequence. One more than there are samples.
  std::vector<int64_t> sample_documents;
  std::vector<int32_t> sample_offsets;
  std::vector<uint32_t> shuffle_index;  // stream place -> sample

  int64_t size() const { return static_cast<int64_t>(shuffle_index.size()); }
};

// `length_of(s)` gives the tokens of sequence s. InvalidArgument when the range holds no tokens, or more sequences or
// samples than the format can number (2^31 - 1, 2^32 - 2).
absl::StatusOr<MegatronIndices> BuildMegatronIndices(const std::function<int32_t(int64_t)>& length_of,
                                                     SequenceRange range, const MegatronOrderOptions& options);

// Shuffles as numpy.random.RandomState does; one generator may be used for several arrays in turn. Not thread-safe.
class NumpyShuffler {
 public:
  explicit NumpyShuffler(uint32_t seed);
  ~NumpyShuffler();
  NumpyShuffler(const NumpyShuffler&) = delete;
  NumpyShuffler& operator=(const NumpyShuffler&) = delete;

  void Shuffle(int32_t* begin, int32_t* end);
  void Shuffle(uint32_t* begin, uint32_t* end);

 private:
  struct Generator;
  template <typename T>
  void ShuffleRange(T* begin, T* end);

  std::unique_ptr<Generator> generator_;
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_MEGATRON_ORDER_H_
