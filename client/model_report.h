// What `slipway model inspect` says about a Hugging Face directory. Thread-safe: pure functions, apart from reading
// files.
#ifndef SLIPWAY_CLIENT_MODEL_REPORT_H_
#define SLIPWAY_CLIENT_MODEL_REPORT_H_

#include <string>

#include "absl/status/statusor.h"

namespace slipway::client {

// Architecture, parameters, type of the weights and facts of the tokenizer, as lines. InvalidArgument with all faults
// when the directory would not load: a missing shard, a tensor of another shape, lm_head.weight that is neither there
// nor tied.
absl::StatusOr<std::string> ModelReport(const std::string& directory);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_MODEL_REPORT_H_
