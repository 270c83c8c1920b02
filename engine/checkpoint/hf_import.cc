#include <ATen/ATen.h>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/tensor_fill.h"
#include "engine/format/hf_weights.h"

namespace slipway::engine::checkpoint {
namespace {

// The tensor that a parameter is read from; a tied copy on another stage reads its target's.
absl::StatusOr<const format::HfTensor*> SourceOf(const format::HfWeights& weights, const arch::ParamSpec& spec,
                                                 const std::string& directory) {
  const std::string& name = spec.tied_to.has_value() ? *spec.tied_to : spec.name;
  const format::HfTensor* tensor = weights.Find(name);
  if (tensor == nullptr)
    return absl::NotFoundError(StrCat(directory, ": there is no tensor ", name, ", which the model needs"));
  if (tensor->stored.shape != spec.shape) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": ", name, " has shape [", absl::StrJoin(tensor->stored.shape, ", "),
               "], the model's configuration makes it [", absl::StrJoin(spec.shape, ", "), "]"));
  }
  return tensor;
}

}  // namespace

absl::Status LoadHfWeights(FileSystem& files, const std::string& directory, parallel::FlatStore& store) {
  SLIPWAY_ASSIGN_OR_RETURN(const format::HfWeights weights, format::HfWeights::Open(files, directory));
  for (const parallel::OwnedRange& range : store.owned_ranges()) {
    const arch::ParamSpec& spec = *range.share->spec;
    SLIPWAY_ASSIGN_OR_RETURN(const format::HfTensor* tensor, SourceOf(weights, spec, directory));
    StoredPiece stored;
    stored.piece = format::WholeTensor(spec.shape);
    stored.dtype = tensor->stored.dtype;
    stored.read = [&weights, tensor](int64_t offset, absl::Span<std::byte> out) {
      return weights.Read(*tensor, offset, out);
    };
    const format::Piece target{{range.share->box.start, range.share->box.extent}, range.begin, range.end};
    at::Tensor slice =
        store.buckets()[range.share->bucket].loaded_slice().narrow(0, range.offset, range.end - range.begin);
    SLIPWAY_RETURN_IF_ERROR(FillTensor(spec.name, spec.shape, {stored}, target, slice));
  }
  store.PublishWeights();
  return absl::OkStatus();
}

}  // namespace slipway::engine::checkpoint
