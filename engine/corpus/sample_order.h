// The `epoch` order: every epoch reads each item once, in a new order drawn from the seed, or in file order.
#ifndef SLIPWAY_ENGINE_CORPUS_SAMPLE_ORDER_H_
#define SLIPWAY_ENGINE_CORPUS_SAMPLE_ORDER_H_

#include <cstdint>
#include <memory>

#include "engine/corpus/sample_set.h"
#include "engine/corpus/sample_source.h"

namespace slipway::engine::corpus {

// The item at place k of the stream is a pure function of (size, seed, shuffle, k): nothing is drawn in advance or
// kept, so a run can go on from anywhere. Copyable, immutable, thread-safe.
class EpochOrder {
 public:
  // REQUIRES: size > 0.
  EpochOrder(int64_t size, uint64_t seed, bool shuffle) : size_(size), seed_(seed), shuffle_(shuffle) {}

  int64_t size() const { return size_; }
  // REQUIRES: k >= 0.
  int64_t ItemAt(int64_t k) const;

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
};

// `set` in epoch order, without end. REQUIRES: set->size() > 0.
std::shared_ptr<const SampleSource> InEpochOrder(std::shared_ptr<const SampleSet> set, uint64_t seed, bool shuffle);

// Σ weights of the samples [consumed, consumed + count), all ranks' together, without making them where that is
// cheaper.
absl::StatusOr<double> TotalLossWeight(const SampleSource& source, int64_t consumed, int64_t count);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_SAMPLE_ORDER_H_
