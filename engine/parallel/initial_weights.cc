#include "engine/parallel/initial_weights.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "common/philox.h"

namespace slipway::engine::parallel {
namespace {

constexpr int64_t kElementsPerTask = 1 << 15;

// Elements [first, first + count) of the whole tensor.
void DrawRun(PhiloxKey key, double std, int64_t first, int64_t count, float* out) {
  PhiloxBlock block;
  int64_t drawn = -1;
  for (int64_t i = first; i < first + count; ++i) {
    if (i / 4 != drawn) {
      drawn = i / 4;
      block = Philox(key, InitialWeightCounter(static_cast<uint64_t>(drawn)));
    }
    out[i - first] = static_cast<float>(std * PhiloxNormal(block.v[i % 4]));
  }
}

// The global index of the first element of a row of the box; rows run along the last dimension.
int64_t RowStart(const arch::ParamSpec& spec, const std::vector<int64_t>& start, const std::vector<int64_t>& extent,
                 int64_t row) {
  int64_t index = start.back();
  int64_t stride = spec.shape.back();
  for (int dim = static_cast<int>(spec.shape.size()) - 2; dim >= 0; --dim) {
    index += (start[dim] + row % extent[dim]) * stride;
    row /= extent[dim];
    stride *= spec.shape[dim];
  }
  return index;
}

}  // namespace

void DrawInitialWeights(const arch::ParamSpec& spec, uint64_t seed, const std::vector<int64_t>& start,
                        const std::vector<int64_t>& extent, int64_t begin, int64_t end, float* out) {
  if (begin >= end) return;
  if (spec.init.kind != arch::Init::Kind::kNormal) {
    std::fill(out, out + (end - begin), spec.init.kind == arch::Init::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const PhiloxKey key = InitialWeightKey(seed, spec.name);
  const int64_t columns = extent.back();
  const int64_t first_row = begin / columns, last_row = (end - 1) / columns;
  at::parallel_for(first_row, last_row + 1, std::max<int64_t>(1, kElementsPerTask / columns),
                   [&](int64_t row_begin, int64_t row_end) {
                     for (int64_t row = row_begin; row < row_end; ++row) {
                       const int64_t from = std::max(begin, row * columns), to = std::min(end, (row + 1) * columns);
                       DrawRun(key, spec.init.std, RowStart(spec, start, extent, row) + from - row * columns, to - from,
                               out + (from - begin));
                     }
                   });
}

}  // namespace slipway::engine::parallel
