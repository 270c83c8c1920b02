// The layout string of a pipeline, in Megatron-LM's language (megatron/core/transformer/
// pipeline_parallel_layer_layout.py): which layers each stage holds, stage after stage in model order.
//
//   Et*3|t*4|(tt|)*2t|L      E embedding, t a layer, L the loss, | the next stage, commas are ignored
//
// `x*n` repeats one character, `(…)*n` a run of them (no parentheses inside). Stages may be empty. Thread-safe: pure
// functions.
#ifndef SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_LAYOUT_H_
#define SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_LAYOUT_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::engine::topology {

// Layers of each stage. The embedding is in the first stage and the loss in the last. InvalidArgument naming the
// position in the string (from 1), what stands there and what would be right: an unknown character, m (multi-token
// prediction, which is not supported), a repetition or parenthesis that is not complete, an E or L that is missing,
// given twice or not at the ends.
absl::StatusOr<std::vector<int>> ParsePipelineLayout(std::string_view layout);

}  // namespace slipway::engine::topology

#endif  // SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_LAYOUT_H_
