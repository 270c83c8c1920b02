// Made-up samples: the same for the same seed everywhere. Each token follows from the one before by one of two rules,
// so a model can learn something: the loss falls from ln(vocab_size) towards ln 2.
#ifndef SLIPWAY_ENGINE_CORPUS_MOCK_DATASET_H_
#define SLIPWAY_ENGINE_CORPUS_MOCK_DATASET_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/corpus/sample_set.h"

namespace slipway::engine::corpus {

struct MockDatasetOptions {
  int64_t num_samples = 1024;
  int64_t seq_length = 0;
  int64_t vocab_size = 0;
  uint64_t seed = 0;
};

// InvalidArgument when a number is below 1.
absl::StatusOr<std::shared_ptr<const SampleSet>> MakeMockDataset(const MockDatasetOptions& options);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_MOCK_DATASET_H_
