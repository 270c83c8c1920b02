// Peak arithmetic of devices, for model FLOP utilisation.
#ifndef SLIPWAY_ENGINE_TRAIN_DEVICE_PEAK_H_
#define SLIPWAY_ENGINE_TRAIN_DEVICE_PEAK_H_

#include <ATen/core/Tensor.h>

namespace slipway::engine::train {

// Dense FLOP/s of one device in matrix products of that type, as its maker states; 0 where it is not known (all CPUs).
double DevicePeakFlops(at::Device device, at::ScalarType compute_type);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_DEVICE_PEAK_H_
