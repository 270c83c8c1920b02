// What the trainer reads: a stream of samples, and who reads which of them.
//
// The stream is one for the whole run: sample k (from 0) is a pure function of the dataset, its seed and k. Changing
// the data-parallel size or the micro-batch size never changes it; consumed_samples alone says where a resumed run goes
// on.
#ifndef SLIPWAY_ENGINE_CORPUS_SAMPLE_SOURCE_H_
#define SLIPWAY_ENGINE_CORPUS_SAMPLE_SOURCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::engine::corpus {

// tokens[i] predicts labels[i]; all three have the same length, at most the dataset's sequence length.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;  // any valid id where the weight is 0
  std::vector<float> weights;   // 0: no loss
};

// Thread-safe: any number of threads may read.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Samples of one epoch: the size of the dataset.
  virtual int64_t epoch_size() const = 0;
  // Sample k of the stream, which never ends but in the megatron order: there it is OutOfRange from the samples on that
  // the order was built for (dataset.requested_samples, which the spec's rules keep a run within). DataLoss naming file,
  // document and offset when the data is bad or is no longer what it was.
  virtual absl::StatusOr<Sample> Get(int64_t k) const = 0;
  // Σ weights of sample k, without building it where that is cheaper.
  virtual absl::StatusOr<double> LossWeight(int64_t k) const = 0;
  // One past the largest token id that a sample can hold, for checks against the embedding. Where the ids are only known
  // once they are read (indexed data), it is what Get refuses.
  virtual int64_t vocab_bound() const = 0;
};

// Which samples a data-parallel rank computes in a step: the global batch [consumed, consumed + global_batch_size) is
// cut into micro-steps of dp_size × micro_batch_size samples, of each of which rank r takes the r-th run (Megatron-LM's
// `single` sampler).
struct BatchSlicing {
  int64_t global_batch_size = 1;
  int64_t micro_batch_size = 1;
  int dp_rank = 0;
  int dp_size = 1;

  // REQUIRES: global_batch_size is a multiple of micro_batch_size × dp_size.
  int64_t micro_batches() const { return global_batch_size / (micro_batch_size * dp_size); }
  // Stream index of sample i (0 … micro_batch_size − 1) of micro-batch m.
  int64_t SampleIndex(int64_t consumed, int64_t m, int64_t i) const {
    return consumed + m * micro_batch_size * dp_size + dp_rank * micro_batch_size + i;
  }
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_SAMPLE_SOURCE_H_
