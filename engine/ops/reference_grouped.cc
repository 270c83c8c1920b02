// Reference products over groups of rows: one product a group.
#include <ATen/ATen.h>

#include "engine/ops/ops.h"
#include "engine/ops/reference.h"

namespace slipway::engine::ops::reference {
namespace {

// Calls visit(group, first row, rows) for all groups, also empty ones.
template <typename Visit>
void ForEachGroup(const at::Tensor& ends, int64_t groups, int64_t rows, const Visit& visit) {
  TORCH_CHECK(ends.dim() == 1 && ends.size(0) == groups && ends.scalar_type() == at::kInt, "the ends of ", groups,
              " groups must be int32 [", groups, "], not ", ends.scalar_type(), " ", ends.sizes());
  const at::Tensor host = ends.cpu().contiguous();
  const int32_t* end = host.const_data_ptr<int32_t>();
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; ++g) {
    TORCH_CHECK(begin <= end[g] && end[g] <= rows, "group ", g, " ends at row ", end[g], ", after row ", begin, " of ",
                rows);
    visit(g, begin, end[g] - begin);
    begin = end[g];
  }
}

}  // namespace

at::Tensor GroupedMm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, bool transpose) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 2 && x.size(1) == weight.size(transpose ? 2 : 1), "rows of ", x.sizes(),
              " do not go with weights of ", weight.sizes());
  at::Tensor y = at::empty({x.size(0), weight.size(transpose ? 1 : 2)}, x.options());
  ForEachGroup(ends, weight.size(0), x.size(0), [&](int64_t g, int64_t begin, int64_t rows) {
    if (rows == 0) return;
    at::Tensor out = y.narrow(0, begin, rows);
    at::mm_out(out, x.narrow(0, begin, rows), transpose ? weight[g].t() : weight[g]);
  });
  return y;
}

void GroupedMmAccumulate(at::Tensor main_grad, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& ends,
                         bool accumulate) {
  ForEachGroup(ends, main_grad.size(0), x.size(0), [&](int64_t g, int64_t begin, int64_t rows) {
    at::Tensor target = main_grad[g];
    if (rows > 0) {
      ops::MmAccumulate(target, dy.narrow(0, begin, rows), x.narrow(0, begin, rows), accumulate);
    } else if (!accumulate) {
      target.zero_();
    }
  });
}

}  // namespace slipway::engine::ops::reference
