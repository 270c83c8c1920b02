#include "engine/ops/cuda/grouped.h"

#include <ATen/ATen.h>

namespace slipway::engine::ops::cuda {
namespace {

// CUTLASS' grouped products take bf16 with rows of whole 16 bytes, and read the groups' ends on the device.
bool HasKernel(const at::Tensor& x, const at::Tensor& matrices) {
  constexpr int64_t kElements = 8;
  return x.scalar_type() == at::kBFloat16 && x.size(0) > 0 && x.size(1) % kElements == 0 &&
         matrices.size(1) % kElements == 0 && matrices.size(2) % kElements == 0;
}

// The others go one product a group, which waits for the ends. Calls visit(group, first row, rows).
template <typename Visit>
void ForEachGroup(const at::Tensor& ends, const Visit& visit) {
  const at::Tensor host = ends.cpu();
  int64_t begin = 0;
  for (int64_t g = 0; g < host.size(0); ++g) {
    const int64_t end = host.const_data_ptr<int32_t>()[g];
    visit(g, begin, end - begin);
    begin = end;
  }
}

}  // namespace

at::Tensor GroupedMmCuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, bool transpose) {
  if (HasKernel(x, weight)) return at::_grouped_mm(x, transpose ? weight.transpose(1, 2) : weight, ends);
  at::Tensor y = at::empty({x.size(0), weight.size(transpose ? 1 : 2)}, x.options());
  ForEachGroup(ends, [&](int64_t g, int64_t begin, int64_t rows) {
    if (rows == 0) return;
    at::Tensor out = y.narrow(0, begin, rows);
    at::mm_out(out, x.narrow(0, begin, rows), transpose ? weight[g].t() : weight[g]);
  });
  return y;
}

void GroupedMmAccumulateCuda(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& ends,
                             bool accumulate) {
  if (HasKernel(dy, main_grad)) {
    // Summed in fp32 and written as bf16, as a gradient of torch's own would be.
    const at::Tensor grad = at::_grouped_mm(dy.t(), x, ends);
    if (accumulate) {
      main_grad.add_(grad);
    } else {
      main_grad.copy_(grad);
    }
    return;
  }
  if (!accumulate) main_grad.zero_();
  ForEachGroup(ends, [&](int64_t g, int64_t begin, int64_t rows) {
    if (rows == 0) return;
    at::Tensor target = main_grad[g];
    target.addmm_(dy.narrow(0, begin, rows).to(at::kFloat).t(), x.narrow(0, begin, rows).to(at::kFloat));
  });
}

}  // namespace slipway::engine::ops::cuda
