// The range planner: how to put together any piece of a tensor from pieces stored in any other layout. One planner
// serves Hugging Face import (the source is the whole tensor), resume, resharding and export. Pure arithmetic,
// thread-safe.
#ifndef SLIPWAY_ENGINE_FORMAT_RESHARD_H_
#define SLIPWAY_ENGINE_FORMAT_RESHARD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace slipway::engine::format {

// A rectangular part of a global tensor; one entry a dimension. A scalar has none and one element.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> extent;

  int64_t Elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// Elements [begin, end) of a box in its own row-major order: what a rank that shards the flattened box holds.
struct Piece {
  Box box;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t Elements() const { return end - begin; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// All of a tensor.
Piece WholeTensor(absl::Span<const int64_t> shape);
// All of a box.
Piece WholeBox(Box box);
// "[0:4, 2:6] elements 3-17".
std::string PieceText(const Piece& piece);

// The number of elements of a shape; InvalidArgument for a negative size or more than 2^62 elements.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape);

// InvalidArgument when the box leaves the tensor or the range leaves the box.
absl::Status CheckPiece(absl::Span<const int64_t> shape, const Piece& piece);

// `count` neighbouring elements, counted from the first element of the source piece and of the target piece.
struct CopyRange {
  size_t source = 0;
  int64_t source_element = 0;
  int64_t target_element = 0;
  int64_t count = 0;
  friend bool operator==(const CopyRange&, const CopyRange&) = default;
};

// Copies that fill `target` exactly once, in the order of the target, neighbours joined. FailedPrecondition, naming an
// element, when the sources leave a hole in the target or give an element twice.
absl::StatusOr<std::vector<CopyRange>> PlanCopies(absl::Span<const int64_t> shape, absl::Span<const Piece> sources,
                                                  const Piece& target);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_RESHARD_H_
