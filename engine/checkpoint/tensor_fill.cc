#include "engine/checkpoint/tensor_fill.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "common/status_macros.h"

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kMaxHostElements = int64_t{16} << 20;

at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kFloat64:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

absl::Status CopyIn(const StoredPiece& stored, const format::CopyRange& copy, const at::Tensor& host) {
  const int64_t size = DTypeSize(stored.dtype);
  at::Tensor part = host.narrow(0, copy.target_element, copy.count);
  const bool direct = stored.dtype == DType::kFloat32;
  at::Tensor bytes = direct ? part : at::empty({copy.count}, ScalarTypeOf(stored.dtype));
  SLIPWAY_RETURN_IF_ERROR(
      stored.read(copy.source_element * size,
                  absl::MakeSpan(static_cast<std::byte*>(bytes.mutable_data_ptr()), copy.count * size)));
  if (!direct) part.copy_(bytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status FillTensor(const std::string& name, absl::Span<const int64_t> shape,
                        const std::vector<StoredPiece>& stored, const format::Piece& target, at::Tensor out) {
  std::vector<format::Piece> pieces;
  for (const StoredPiece& s : stored) {
    if (!IsFloatingPoint(s.dtype)) {
      return absl::InvalidArgumentError(name + ": stored as " + std::string(DTypeName(s.dtype)) +
                                        ", not as floating-point numbers");
    }
    pieces.push_back(s.piece);
  }
  for (int64_t begin = target.begin; begin < target.end; begin += kMaxHostElements) {
    const format::Piece part{target.box, begin, std::min(target.end, begin + kMaxHostElements)};
    const absl::StatusOr<std::vector<format::CopyRange>> copies = format::PlanCopies(shape, pieces, part);
    if (!copies.ok()) return Annotate(copies.status(), name);
    at::Tensor host = at::empty({part.Elements()}, at::kFloat);
    for (const format::CopyRange& copy : *copies) {
      if (const absl::Status read = CopyIn(stored[copy.source], copy, host); !read.ok()) return Annotate(read, name);
    }
    out.narrow(0, begin - target.begin, part.Elements()).copy_(host);
  }
  return absl::OkStatus();
}

}  // namespace slipway::engine::checkpoint
