// Initial weights as a function of seed, name and global index alone: the same numbers on every layout and device,
// because they are drawn on the host (common/philox.h).
#ifndef SLIPWAY_ENGINE_PARALLEL_INITIAL_WEIGHTS_H_
#define SLIPWAY_ENGINE_PARALLEL_INITIAL_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "engine/arch/param_spec.h"

namespace slipway::engine::parallel {

// Writes elements [begin, end) of the box [start, start + extent) of the tensor, in row-major order, to `out`. Runs on
// ATen's threads; thread-safe.
void DrawInitialWeights(const arch::ParamSpec& spec, uint64_t seed, const std::vector<int64_t>& start,
                        const std::vector<int64_t>& extent, int64_t begin, int64_t end, float* out);

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_INITIAL_WEIGHTS_H_
