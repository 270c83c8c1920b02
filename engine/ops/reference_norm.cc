// Reference RMS norm, rotary embedding and SwiGLU.
#include <ATen/ATen.h>

#include "engine/ops/reference.h"

namespace slipway::engine::ops::reference {
namespace {

void Accumulate(const OptionalTensor& target, const at::Tensor& gradient, bool accumulate) {
  if (!target.has_value()) return;
  if (accumulate) {
    target->add_(gradient);
  } else {
    target->copy_(gradient);
  }
}

struct Rotation {
  at::Tensor cos, sin;  // [T, 1, D / 2]
};

Rotation RotationAt(const at::Tensor& positions, const at::Tensor& inverse_frequencies, at::ScalarType type) {
  const at::Tensor angles = positions.to(type).unsqueeze(1) * inverse_frequencies.to(type).unsqueeze(0);
  return {angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)};
}

// [T, heads, D] turned by the rotation, in its type.
at::Tensor Turn(const at::Tensor& x, const Rotation& rotation, bool inverse) {
  const at::Tensor wide = x.to(rotation.cos.scalar_type());
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = wide.narrow(2, 0, half), b = wide.narrow(2, half, half);
  const at::Tensor sin = inverse ? rotation.sin.neg() : rotation.sin;
  return at::cat({a * rotation.cos - b * sin, b * rotation.cos + a * sin}, 2);
}

int64_t HeadSize(const at::Tensor& qkv, int64_t heads, int64_t groups) {
  TORCH_CHECK(qkv.dim() == 2 && qkv.size(1) % (heads + 2 * groups) == 0, "qkv of shape ", qkv.sizes(),
              " does not hold ", heads, " query and 2 × ", groups, " key/value heads");
  return qkv.size(1) / (heads + 2 * groups);
}

at::Tensor Reciprocal(const at::Tensor& wide, double eps) { return at::rsqrt(wide.square().mean(-1) + eps); }

at::Tensor NormGradient(const at::Tensor& d_normed, const at::Tensor& normed, const at::Tensor& rstd) {
  return (d_normed - normed * (d_normed * normed).mean(-1, /*keepdim=*/true)) * rstd.unsqueeze(-1);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(StatisticsType(x));
  at::Tensor rstd = Reciprocal(wide, eps);
  at::Tensor y = (wide * rstd.unsqueeze(-1)).to(x.scalar_type()) * weight;
  return {std::move(y), std::move(rstd)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& residual, const at::Tensor& y,
                                                          const at::Tensor& weight, double eps) {
  at::Tensor sum = residual + y;
  auto [normed, rstd] = RmsNorm(sum, weight, eps);
  return {std::move(sum), std::move(normed), std::move(rstd)};
}

at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                           const OptionalTensor& residual_grad, const OptionalTensor& weight_grad, bool accumulate) {
  const at::ScalarType type = rstd.scalar_type();
  const at::Tensor wide_dy = dy.to(type);
  const at::Tensor normed = x.to(type) * rstd.unsqueeze(-1);
  Accumulate(weight_grad, (wide_dy * normed).sum(0), accumulate);
  at::Tensor dx = NormGradient(wide_dy * weight.to(type), normed, rstd);
  if (residual_grad.has_value()) dx = dx + residual_grad->to(type);
  return dx.to(x.scalar_type());
}

void Rope(at::Tensor qkv, const at::Tensor& positions, const at::Tensor& inverse_frequencies, int64_t heads,
          int64_t groups, bool inverse) {
  const int64_t size = HeadSize(qkv, heads, groups);
  const Rotation rotation = RotationAt(positions, inverse_frequencies, StatisticsType(qkv));
  at::Tensor turned = qkv.view({qkv.size(0), heads + 2 * groups, size}).narrow(1, 0, heads + groups);
  turned.copy_(Turn(turned, rotation, inverse));
}

std::tuple<at::Tensor, at::Tensor> QkNormRope(const at::Tensor& qkv, const at::Tensor& q_weight,
                                              const at::Tensor& k_weight, double eps, const at::Tensor& positions,
                                              const at::Tensor& inverse_frequencies, int64_t heads, int64_t groups) {
  const int64_t size = HeadSize(qkv, heads, groups);
  const at::Tensor split = qkv.view({qkv.size(0), heads + 2 * groups, size});
  const at::ScalarType type = StatisticsType(qkv);
  const at::Tensor wide = split.narrow(1, 0, heads + groups).to(type);
  at::Tensor rstd = Reciprocal(wide, eps);
  const at::Tensor normed = (wide * rstd.unsqueeze(-1)).to(qkv.scalar_type());
  const at::Tensor weighted =
      at::cat({normed.narrow(1, 0, heads) * q_weight, normed.narrow(1, heads, groups) * k_weight}, 1);
  const Rotation rotation = RotationAt(positions, inverse_frequencies, type);
  at::Tensor out = at::empty_like(qkv);
  at::Tensor out_split = out.view(split.sizes());
  out_split.narrow(1, 0, heads + groups).copy_(Turn(weighted, rotation, /*inverse=*/false));
  out_split.narrow(1, heads + groups, groups).copy_(split.narrow(1, heads + groups, groups));
  return {std::move(out), std::move(rstd)};
}

at::Tensor QkNormRopeBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& q_weight,
                              const at::Tensor& k_weight, const at::Tensor& rstd, const at::Tensor& positions,
                              const at::Tensor& inverse_frequencies, int64_t heads, int64_t groups,
                              const OptionalTensor& q_weight_grad, bool q_accumulate,
                              const OptionalTensor& k_weight_grad, bool k_accumulate) {
  const int64_t size = HeadSize(qkv, heads, groups);
  const at::Tensor split = qkv.view({qkv.size(0), heads + 2 * groups, size});
  const at::Tensor dout_split = dout.view(split.sizes());
  const at::ScalarType type = rstd.scalar_type();
  const Rotation rotation = RotationAt(positions, inverse_frequencies, type);
  const at::Tensor d_weighted = Turn(dout_split.narrow(1, 0, heads + groups), rotation, /*inverse=*/true);
  const at::Tensor normed = split.narrow(1, 0, heads + groups).to(type) * rstd.unsqueeze(-1);
  const at::Tensor product = d_weighted * normed;
  Accumulate(q_weight_grad, product.narrow(1, 0, heads).sum(at::IntArrayRef{0, 1}), q_accumulate);
  Accumulate(k_weight_grad, product.narrow(1, heads, groups).sum(at::IntArrayRef{0, 1}), k_accumulate);
  const at::Tensor d_normed = at::cat(
      {d_weighted.narrow(1, 0, heads) * q_weight.to(type), d_weighted.narrow(1, heads, groups) * k_weight.to(type)}, 1);
  at::Tensor dqkv = at::empty_like(qkv);
  at::Tensor dqkv_split = dqkv.view(split.sizes());
  dqkv_split.narrow(1, 0, heads + groups).copy_(NormGradient(d_normed, normed, rstd));
  dqkv_split.narrow(1, heads + groups, groups).copy_(dout_split.narrow(1, heads + groups, groups));
  return dqkv;
}

at::Tensor SwiGlu(const at::Tensor& gate_up) {
  const int64_t inner = gate_up.size(-1) / 2;
  const at::ScalarType type = StatisticsType(gate_up);
  const at::Tensor gate = gate_up.narrow(-1, 0, inner).to(type), up = gate_up.narrow(-1, inner, inner).to(type);
  return (at::silu(gate) * up).to(gate_up.scalar_type());
}

at::Tensor SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const int64_t inner = gate_up.size(-1) / 2;
  const at::ScalarType type = StatisticsType(gate_up);
  const at::Tensor gate = gate_up.narrow(-1, 0, inner).to(type), up = gate_up.narrow(-1, inner, inner).to(type);
  const at::Tensor wide_dy = dy.to(type);
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor d_gate = wide_dy * up * sigmoid * (1 + gate * (1 - sigmoid));
  return at::cat({d_gate, wide_dy * gate * sigmoid}, -1).to(gate_up.scalar_type());
}

}  // namespace slipway::engine::ops::reference
