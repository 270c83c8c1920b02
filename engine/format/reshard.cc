#include "engine/format/reshard.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::format {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;

// Two boxes and their tensor with as few dimensions as possible: trailing dimensions in which both boxes span the same
// range are one dimension for both, so whole rows are copied at once.
struct Overlap {
  std::vector<int64_t> start, extent;  // of the intersection, in the tensor's coordinates
  std::vector<int64_t> source_start, source_stride;
  std::vector<int64_t> target_start, target_stride;
  int64_t row = 0;  // elements that lie next to each other in both
  bool empty = false;
};

std::vector<int64_t> Strides(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

Overlap Intersect(const Box& source, const Box& target) {
  Overlap overlap;
  const size_t rank = source.start.size();
  for (size_t d = 0; d < rank; ++d) {
    const int64_t start = std::max(source.start[d], target.start[d]);
    const int64_t end = std::min(source.start[d] + source.extent[d], target.start[d] + target.extent[d]);
    if (end <= start) overlap.empty = true;
    overlap.start.push_back(start);
    overlap.extent.push_back(end - start);
  }
  overlap.source_start = source.start;
  overlap.target_start = target.start;
  overlap.source_stride = Strides(source.extent);
  overlap.target_stride = Strides(target.extent);
  // Rows end where the first dimension from the right is not the same in both boxes; that dimension still joins.
  overlap.row = 1;
  while (!overlap.start.empty()) {
    const size_t d = overlap.start.size() - 1;
    const bool same = source.start[d] == target.start[d] && source.extent[d] == target.extent[d];
    if (!same || d == 0) break;
    overlap.row *= overlap.extent[d];
    overlap.start.pop_back();
    overlap.extent.pop_back();
  }
  return overlap;
}

void AppendCopy(size_t source, int64_t from, int64_t to, int64_t count, std::vector<CopyRange>* copies) {
  if (!copies->empty()) {
    CopyRange& last = copies->back();
    if (last.source == source && last.source_element + last.count == from && last.target_element + last.count == to) {
      last.count += count;
      return;
    }
  }
  copies->push_back({source, from, to, count});
}

// Cuts the first dimension of the overlap to what the element range of `piece` can touch: a rank's slice of a flattened
// box is a few rows of many.
void ClipFirstDimension(const Piece& piece, int64_t piece_start, int64_t stride, Overlap* overlap) {
  const int64_t first = piece_start + piece.begin / stride;
  const int64_t end = piece_start + (piece.end + stride - 1) / stride;
  const int64_t new_start = std::max(overlap->start[0], first);
  const int64_t new_end = std::min(overlap->start[0] + overlap->extent[0], end);
  overlap->start[0] = new_start;
  overlap->extent[0] = new_end - new_start;
  if (new_end <= new_start) overlap->empty = true;
}

void PlanOneSource(size_t index, const Piece& source, const Piece& target, std::vector<CopyRange>* copies) {
  if (source.Elements() == 0 || target.Elements() == 0) return;
  Overlap overlap = Intersect(source.box, target.box);
  if (overlap.empty) return;
  const size_t rank = overlap.start.size();
  if (rank == 0) {
    AppendCopy(index, 0, 0, 1, copies);  // scalars
    return;
  }
  ClipFirstDimension(source, overlap.source_start[0], overlap.source_stride[0], &overlap);
  ClipFirstDimension(target, overlap.target_start[0], overlap.target_stride[0], &overlap);
  if (overlap.empty) return;

  // The last remaining dimension is contiguous in both boxes: a run is all of it.
  const int64_t run = overlap.extent[rank - 1] * overlap.row;
  std::vector<int64_t> at = overlap.start;
  while (true) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < rank; ++d) {
      from += (at[d] - overlap.source_start[d]) * overlap.source_stride[d];
      to += (at[d] - overlap.target_start[d]) * overlap.target_stride[d];
    }
    // Clip the run to both element ranges.
    const int64_t skip = std::max({int64_t{0}, source.begin - from, target.begin - to});
    const int64_t count = std::min({run, source.end - from, target.end - to}) - skip;
    if (count > 0) AppendCopy(index, from + skip - source.begin, to + skip - target.begin, count, copies);
    // The next row: count up from the second-last dimension.
    size_t d = rank - 1;
    while (d > 0 && ++at[d - 1] == overlap.start[d - 1] + overlap.extent[d - 1]) {
      at[d - 1] = overlap.start[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

std::string ElementText(const Piece& piece, int64_t element) {
  int64_t rest = piece.begin + element;
  const std::vector<int64_t> strides = Strides(piece.box.extent);
  std::vector<int64_t> index;
  for (size_t d = 0; d < strides.size(); ++d) {
    index.push_back(piece.box.start[d] + rest / strides[d]);
    rest %= strides[d];
  }
  return absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

}  // namespace

int64_t Box::Elements() const {
  int64_t elements = 1;
  for (const int64_t e : extent) elements *= e;
  return elements;
}

Piece WholeTensor(absl::Span<const int64_t> shape) {
  return WholeBox(Box{.start = std::vector<int64_t>(shape.size(), 0), .extent = {shape.begin(), shape.end()}});
}

Piece WholeBox(Box box) {
  const int64_t elements = box.Elements();
  return Piece{.box = std::move(box), .begin = 0, .end = elements};
}

std::string PieceText(const Piece& piece) {
  std::vector<std::string> dims;
  for (size_t d = 0; d < piece.box.start.size(); ++d) {
    dims.push_back(absl::StrCat(piece.box.start[d], ":", piece.box.start[d] + piece.box.extent[d]));
  }
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "] elements ", piece.begin, "-", piece.end);
}

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape) {
  bool zero = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has a negative size"));
    }
    zero = zero || size == 0;
  }
  int64_t elements = 1;
  for (const int64_t size : shape) {
    // Products are checked although a zero elsewhere would make the whole zero: strides are products too.
    if (size > 1 && elements > kMaxElements / size) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] is too large"));
    }
    elements *= std::max<int64_t>(size, 1);
  }
  return zero ? 0 : elements;
}

absl::Status CheckPiece(absl::Span<const int64_t> shape, const Piece& piece) {
  const Box& box = piece.box;
  if (box.start.size() != shape.size() || box.extent.size() != shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a box with ", box.start.size(), " starts and ", box.extent.size(),
                                                   " extents lies in no tensor of ", shape.size(), " dimensions"));
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    // Written so that no sum can overflow.
    if (box.start[d] < 0 || box.extent[d] < 0 || box.start[d] > shape[d] || box.extent[d] > shape[d] - box.start[d]) {
      return absl::InvalidArgumentError(absl::StrCat("box of start ", box.start[d], " and extent ", box.extent[d],
                                                     " leaves dimension ", d, " of shape [", absl::StrJoin(shape, ", "),
                                                     "]"));
    }
  }
  if (piece.begin < 0 || piece.end < piece.begin || piece.end > box.Elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", piece.begin, "-", piece.end, " lie outside a box of ", box.Elements(), " elements"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CopyRange>> PlanCopies(absl::Span<const int64_t> shape, absl::Span<const Piece> sources,
                                                  const Piece& target) {
  SLIPWAY_RETURN_IF_ERROR(ElementCount(shape).status());
  SLIPWAY_RETURN_IF_ERROR(CheckPiece(shape, target));
  std::vector<CopyRange> found;
  for (size_t i = 0; i < sources.size(); ++i) {
    SLIPWAY_RETURN_IF_ERROR(CheckPiece(shape, sources[i]));
    PlanOneSource(i, sources[i], target, &found);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const CopyRange& a, const CopyRange& b) { return a.target_element < b.target_element; });
  std::vector<CopyRange> copies;
  int64_t filled = 0;
  for (const CopyRange& copy : found) {
    if (copy.target_element > filled) break;
    if (copy.target_element < filled) {
      return absl::FailedPreconditionError(absl::StrCat("element ", ElementText(target, copy.target_element),
                                                        " is in two shards, one of them ",
                                                        PieceText(sources[copy.source])));
    }
    AppendCopy(copy.source, copy.source_element, copy.target_element, copy.count, &copies);
    filled += copy.count;
  }
  if (filled != target.Elements()) {
    return absl::FailedPreconditionError(absl::StrCat("element ", ElementText(target, filled), " is in no shard"));
  }
  return copies;
}

}  // namespace slipway::engine::format
