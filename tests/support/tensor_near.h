// The one measure of equality of tensors in tests: ‖a − b‖ / ‖b‖, with an absolute floor for b near zero.
//   EXPECT_THAT(gradient, TensorNear(expected, 1e-5));
#ifndef SLIPWAY_TESTS_SUPPORT_TENSOR_NEAR_H_
#define SLIPWAY_TESTS_SUPPORT_TENSOR_NEAR_H_

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

namespace slipway::testing {

inline constexpr double kTensorNormFloor = 1e-6;

// NaN when shapes differ or a value is not finite.
inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || !expected.defined() || actual.sizes() != expected.sizes()) return NAN;
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble), b = expected.detach().to(at::kCPU, at::kDouble);
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), kTensorNormFloor);
}

MATCHER_P2(TensorNear, expected, tolerance, "") {
  const double error = RelativeError(arg, expected);
  std::ostringstream text;
  text << "relative error " << error;
  if (arg.defined()) text << ", shape " << arg.sizes();
  *result_listener << text.str();
  return error <= tolerance;
}

// The same bits.
MATCHER_P(TensorEqual, expected, "") {
  *result_listener << "relative error " << RelativeError(arg, expected);
  return arg.defined() && arg.scalar_type() == expected.scalar_type() && at::equal(arg, expected);
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_TENSOR_NEAR_H_
