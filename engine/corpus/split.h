// How an indexed dataset is divided into training, validation and test sequences, as Megatron-LM does it
// (megatron/core/datasets/blended_megatron_dataset_config.py, blended_megatron_dataset_builder.py). Thread-safe.
#ifndef SLIPWAY_ENGINE_CORPUS_SPLIT_H_
#define SLIPWAY_ENGINE_CORPUS_SPLIT_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace slipway::engine::corpus {

enum class SplitPart { kTraining = 0, kValidation = 1, kTest = 2 };
std::string_view SplitPartName(SplitPart part);

// Shares of the three parts; they sum to 1.
using SplitShares = std::array<double, 3>;

// "969,30,1" or "0.9,0.1": up to three numbers, none negative, at least one positive; missing ones are 0.
absl::StatusOr<SplitShares> ParseSplit(std::string_view text);

struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The part's sequences of `count`; bounds are rounded half to even. Empty for a share of 0.
SequenceRange RangeOf(const SplitShares& shares, SplitPart part, int64_t count);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_SPLIT_H_
