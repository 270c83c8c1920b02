// Products over groups of rows (ops::kGroupedMm). Internal to the CUDA plug-in.
#ifndef SLIPWAY_ENGINE_OPS_CUDA_GROUPED_H_
#define SLIPWAY_ENGINE_OPS_CUDA_GROUPED_H_

#include "engine/ops/op_signatures.h"

namespace slipway::engine::ops::cuda {

GroupedMmFn GroupedMmCuda;
GroupedMmAccumulateFn GroupedMmAccumulateCuda;

}  // namespace slipway::engine::ops::cuda

#endif  // SLIPWAY_ENGINE_OPS_CUDA_GROUPED_H_
