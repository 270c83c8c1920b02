// What `slipway model inspect` and the dry run say about a Hugging Face directory. Thread-safe: pure functions, apart
// from reading files.
#ifndef SLIPWAY_CLIENT_MODEL_REPORT_H_
#define SLIPWAY_CLIENT_MODEL_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/format.h"
#include "engine/arch/model_arch.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::client {

struct ModelReport {
  std::string text;                 // aligned lines
  Json json;                        // the same, and the faults
  std::vector<std::string> faults;  // why it would not load, one a line
};

// An error only where config.json cannot be read; what else is wrong (a missing shard, a tensor that is missing or has
// another shape, an output matrix that is neither there nor tied, a tokenizer with more ids than the embedding has
// rows) is a fault.
absl::StatusOr<ModelReport> InspectModel(const std::string& directory);

// The weights' part of that: every fault, and what is there.
struct WeightReport {
  std::string summary;  // one line; empty when they cannot be read
  Json json;            // null then
  std::vector<std::string> faults;
};
WeightReport InspectWeights(const std::string& directory, const engine::arch::ModelArch& arch);

// "BOS 1 <|im_start|>", "EOS 2 <|im_end|>", "PAD none".
std::vector<std::string> SpecialTokenLines(const engine::tokenizer::Tokenizer& tokenizer);
// {"bos": {"id": 1, "text": "<|im_start|>"}, "eos": …, "pad": null}.
Json SpecialTokensJson(const engine::tokenizer::Tokenizer& tokenizer);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_MODEL_REPORT_H_
