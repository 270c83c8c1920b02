#include "engine/nn/sequence_layout.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace slipway::engine::nn {

SequenceLayout MakeSequenceLayout(const std::vector<int64_t>& row_lengths, const std::vector<int64_t>& sample_indices,
                                  int64_t num_tokens, at::Device device) {
  TORCH_CHECK(row_lengths.size() == sample_indices.size(), row_lengths.size(), " rows but ", sample_indices.size(),
              " sample indices");
  SequenceLayout layout;
  layout.num_tokens = num_tokens;
  layout.num_rows = static_cast<int64_t>(row_lengths.size());
  const at::Tensor positions = at::empty({num_tokens}, at::kLong), samples = at::empty({num_tokens}, at::kLong);
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  int64_t* sample = samples.mutable_data_ptr<int64_t>();
  int64_t used = 0;
  const auto add_row = [&](int64_t length, int64_t sample_index) {
    layout.cu_seqlens_host.push_back(static_cast<int32_t>(used));
    for (int64_t i = 0; i < length; ++i, ++used) {
      position[used] = i;
      sample[used] = sample_index;
    }
    layout.max_row_length = std::max(layout.max_row_length, length);
  };
  for (size_t r = 0; r < row_lengths.size(); ++r) {
    TORCH_CHECK(row_lengths[r] >= 0 && row_lengths[r] <= num_tokens - used, "row ", r, " of ", row_lengths[r],
                " tokens does not fit in the remaining ", num_tokens - used, " of ", num_tokens);
    add_row(row_lengths[r], sample_indices[r]);
  }
  layout.uniform = used == num_tokens && std::all_of(row_lengths.begin(), row_lengths.end(),
                                                     [&](int64_t length) { return length == row_lengths.front(); });
  add_row(num_tokens - used, kPaddingSample);
  layout.cu_seqlens_host.push_back(static_cast<int32_t>(num_tokens));
  layout.cu_seqlens = at::tensor(at::ArrayRef<int32_t>(layout.cu_seqlens_host), at::kInt).to(device);
  layout.positions = positions.to(device);
  layout.sample_index = samples.to(device);
  return layout;
}

SequenceLayout SliceOfTokens(const SequenceLayout& layout, int rank, int ranks) {
  TORCH_CHECK(layout.num_tokens % ranks == 0, layout.num_tokens, " tokens do not divide over ", ranks, " ranks");
  SequenceLayout slice;
  slice.num_tokens = layout.num_tokens / ranks;
  slice.positions = layout.positions.narrow(0, rank * slice.num_tokens, slice.num_tokens);
  slice.sample_index = layout.sample_index.narrow(0, rank * slice.num_tokens, slice.num_tokens);
  return slice;
}

}  // namespace slipway::engine::nn
