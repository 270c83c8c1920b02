// A layout for a job on a number of GPUs: everything starts at one, and what memory asks for is doubled until a rank
// fits.
//
// With dp = GPUs / (tp · cp · pp), as long as a rank needs more than kUsableMemory of a GPU, or the global batch does
// not divide over the data-parallel ranks, the first of these that the model and the GPUs allow is doubled:
//   - where activations and logits take more than weights, gradients and optimizer state: context parallelism while each
//     rank keeps kContextTokens tokens of a sequence, then tensor parallelism inside a node, then pipeline stages;
//   - else: tensor parallelism inside a node, then pipeline stages, then context parallelism.
// Sequence parallelism comes with tensor parallelism. A pipeline gets virtual stages, as many as leave each of them two
// layers, divide the layers evenly and suit the micro-batches, at most kMostVirtualStages, if the rank still fits.
// Deterministic; thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SUGGEST_H_
#define SLIPWAY_ENGINE_SPEC_SUGGEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

inline constexpr double kUsableMemory = 0.9;  // the rest is the allocator's and the communication's
inline constexpr int64_t kContextTokens = 16384;
inline constexpr int kMostVirtualStages = 4;

struct SuggestOptions {
  int64_t gpus = 1;
  double gpu_memory_bytes = 0;
  int gpus_per_node = 8;
};

struct Suggestion {
  v1::TrainingSpec spec;             // resolved, with the new parallelism section
  std::vector<std::string> reasons;  // one for each size that was doubled, in order
};

// The fields of the parallelism section that a suggestion sets.
std::vector<std::string> SuggestedFields();

// `spec` is resolved; what it says in SuggestedFields does not count. InvalidArgument with the faults of the rest of
// the spec; ResourceExhausted with the numbers when nothing can be doubled any more.
absl::StatusOr<Suggestion> SuggestLayout(const v1::TrainingSpec& spec, const arch::ModelArch& model,
                                         const SuggestOptions& options);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SUGGEST_H_
