// Filling this rank's slices from stored pieces, whatever layout they were written in.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_TENSOR_FILL_H_
#define SLIPWAY_ENGINE_CHECKPOINT_TENSOR_FILL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "engine/format/reshard.h"

namespace slipway::engine::checkpoint {

// A stored piece of one tensor: which elements it holds, and how to read bytes counted from its first one.
struct StoredPiece {
  format::Piece piece;
  DType dtype = DType::kFloat32;
  std::function<absl::Status(int64_t byte_offset, absl::Span<std::byte> out)> read;
};

// Reads the elements `target` of the tensor of `shape` into `out`, of as many elements and any float type, on any
// device. Holds at most 64 MiB of them on the host at a time. Errors name the tensor.
absl::Status FillTensor(const std::string& name, absl::Span<const int64_t> shape,
                        const std::vector<StoredPiece>& stored, const format::Piece& target, at::Tensor out);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_TENSOR_FILL_H_
