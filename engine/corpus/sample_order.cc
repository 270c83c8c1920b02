#include "engine/corpus/sample_order.h"

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "common/status_macros.h"

namespace slipway::engine::corpus {
namespace {

uint64_t Word(PhiloxKey key, uint32_t round, uint64_t value) {
  const PhiloxBlock block = Philox(key, {{round, static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32), 0}});
  return block.v[0] | uint64_t{block.v[1]} << 32;
}

// Fisher-Yates: every order of a small set is equally likely.
int64_t ShuffledSmall(PhiloxKey key, int64_t size, int64_t place) {
  std::vector<int64_t> items(static_cast<size_t>(size));
  std::iota(items.begin(), items.end(), 0);
  for (uint64_t i = items.size() - 1; i > 0; --i) std::swap(items[i], items[Word(key, 0, i) % (i + 1)]);
  return items[static_cast<size_t>(place)];
}

// A permutation of [0, size) that needs no table: a Feistel network over a grid of about sqrt(size) squared, walked on
// from the few places outside.
int64_t ShuffledLarge(PhiloxKey key, int64_t size, int64_t place) {
  constexpr uint32_t kRounds = 8;
  uint64_t rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(size)));
  while (rows * rows < static_cast<uint64_t>(size)) ++rows;
  const uint64_t columns = (static_cast<uint64_t>(size) + rows - 1) / rows;
  uint64_t x = static_cast<uint64_t>(place);
  do {
    uint64_t row = x / columns;
    uint64_t column = x % columns;
    for (uint32_t round = 0; round < kRounds; round += 2) {
      row = (row + Word(key, round, column) % rows) % rows;
      column = (column + Word(key, round + 1, row) % columns) % columns;
    }
    x = row * columns + column;
  } while (x >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(x);
}

class OrderedSource final : public SampleSource {
 public:
  OrderedSource(std::shared_ptr<const SampleSet> set, uint64_t seed, bool shuffle)
      : set_(std::move(set)), order_(set_->size(), seed, shuffle) {}

  int64_t epoch_size() const override { return set_->size(); }
  absl::StatusOr<Sample> Get(int64_t k) const override { return set_->Get(order_.ItemAt(k)); }
  absl::StatusOr<double> LossWeight(int64_t k) const override { return set_->LossWeight(order_.ItemAt(k)); }
  int64_t vocab_bound() const override { return set_->vocab_bound(); }

 private:
  std::shared_ptr<const SampleSet> set_;
  EpochOrder order_;
};

}  // namespace

int64_t EpochOrder::ItemAt(int64_t k) const {
  constexpr int64_t kSmall = 256;
  const int64_t place = k % size_;
  if (!shuffle_ || size_ == 1) return place;
  const PhiloxKey key = SampleOrderKey(seed_, static_cast<uint64_t>(k / size_));
  return size_ <= kSmall ? ShuffledSmall(key, size_, place) : ShuffledLarge(key, size_, place);
}

std::shared_ptr<const SampleSource> InEpochOrder(std::shared_ptr<const SampleSet> set, uint64_t seed, bool shuffle) {
  return std::make_shared<OrderedSource>(std::move(set), seed, shuffle);
}

absl::StatusOr<double> TotalLossWeight(const SampleSource& source, int64_t consumed, int64_t count) {
  double total = 0;
  for (int64_t k = consumed; k < consumed + count; ++k) {
    SLIPWAY_ASSIGN_OR_RETURN(const double weight, source.LossWeight(k));
    total += weight;
  }
  return total;
}

}  // namespace slipway::engine::corpus
