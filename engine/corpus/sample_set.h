// A dataset of samples that can be read in any order. SampleSource (sample_source.h) is one in an order.
#ifndef SLIPWAY_ENGINE_CORPUS_SAMPLE_SET_H_
#define SLIPWAY_ENGINE_CORPUS_SAMPLE_SET_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/corpus/sample_source.h"

namespace slipway::engine::corpus {

// Thread-safe: any number of threads may read.
class SampleSet {
 public:
  virtual ~SampleSet() = default;
  virtual int64_t size() const = 0;
  // REQUIRES: 0 <= item < size(), in both.
  virtual absl::StatusOr<Sample> Get(int64_t item) const = 0;
  virtual absl::StatusOr<double> LossWeight(int64_t item) const = 0;
  // As SampleSource::vocab_bound.
  virtual int64_t vocab_bound() const = 0;
};

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_SAMPLE_SET_H_
