#include "engine/corpus/mock_dataset.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "common/philox.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

class MockDataset final : public SampleSet {
 public:
  explicit MockDataset(const MockDatasetOptions& options) : options_(options) {}

  int64_t size() const override { return options_.num_samples; }
  int64_t vocab_bound() const override { return options_.vocab_size; }
  absl::StatusOr<double> LossWeight(int64_t) const override { return static_cast<double>(options_.seq_length); }

  absl::StatusOr<Sample> Get(int64_t item) const override {
    const PhiloxKey key = MockDataKey(options_.seed);
    const uint64_t vocab = static_cast<uint64_t>(options_.vocab_size);
    Sample sample;
    uint64_t token = 0;
    for (int64_t i = 0; i <= options_.seq_length; ++i) {
      const uint32_t word = Philox(key, MockDataCounter(static_cast<uint64_t>(item), static_cast<uint32_t>(i))).v[0];
      token = i == 0 ? word % vocab : (5 * token + 7 + word % 2) % vocab;
      if (i > 0) sample.labels.push_back(static_cast<int32_t>(token));
      if (i < options_.seq_length) sample.tokens.push_back(static_cast<int32_t>(token));
    }
    sample.weights.assign(sample.tokens.size(), 1.f);
    return sample;
  }

 private:
  MockDatasetOptions options_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const SampleSet>> MakeMockDataset(const MockDatasetOptions& options) {
  const std::pair<const char*, int64_t> numbers[] = {
      {"num_samples", options.num_samples}, {"seq_length", options.seq_length}, {"vocab_size", options.vocab_size}};
  for (const auto& [name, value] : numbers) {
    if (value < 1 || value > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(StrCat("mock data: ", name, " is ", value, "; expected 1 to 2^31 - 1"));
    }
  }
  return std::make_shared<MockDataset>(options);
}

}  // namespace slipway::engine::corpus
