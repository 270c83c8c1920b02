#include "engine/nn/sequence_layout.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace slipway::engine::nn {
namespace {

at::Tensor IndexTensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong).to(device);
}

at::Tensor StartsTensor(const std::vector<int32_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int32_t>(values), at::kInt).to(device);
}

// All rows, each padded to a multiple of `row_multiple`.
SequenceLayout WholeLayout(const std::vector<int64_t>& row_lengths, const std::vector<int64_t>& sample_indices,
                           int64_t num_tokens, int64_t row_multiple, at::Device device) {
  TORCH_CHECK(row_lengths.size() == sample_indices.size(), row_lengths.size(), " rows but ", sample_indices.size(),
              " sample indices");
  SequenceLayout layout;
  layout.num_tokens = num_tokens;
  layout.num_rows = static_cast<int64_t>(row_lengths.size());
  const at::Tensor positions = at::empty({num_tokens}, at::kLong), samples = at::empty({num_tokens}, at::kLong);
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  int64_t* sample = samples.mutable_data_ptr<int64_t>();
  int64_t used = 0;
  const auto add_row = [&](int64_t length, int64_t padded, int64_t sample_index) {
    layout.cu_seqlens_host.push_back(static_cast<int32_t>(used));
    for (int64_t i = 0; i < padded; ++i, ++used) {
      position[used] = i;
      sample[used] = i < length ? sample_index : kPaddingSample;
    }
    layout.max_row_length = std::max(layout.max_row_length, padded);
  };
  const auto padded = [&](int64_t length) { return (length + row_multiple - 1) / row_multiple * row_multiple; };
  for (size_t r = 0; r < row_lengths.size(); ++r) {
    TORCH_CHECK(row_lengths[r] >= 0 && padded(row_lengths[r]) <= num_tokens - used, "row ", r, " of ", row_lengths[r],
                " tokens does not fit in the remaining ", num_tokens - used, " of ", num_tokens);
    add_row(row_lengths[r], padded(row_lengths[r]), sample_indices[r]);
  }
  layout.uniform = used == num_tokens && std::all_of(row_lengths.begin(), row_lengths.end(), [&](int64_t length) {
                     return padded(length) == padded(row_lengths.front());
                   });
  std::vector<int64_t> row_samples;
  for (size_t r = 0; r < row_lengths.size(); ++r) {
    row_samples.push_back(row_lengths[r] > 0 ? sample_indices[r] : kPaddingSample);
  }
  layout.row_samples = IndexTensor(row_samples, device);
  add_row(0, num_tokens - used, kPaddingSample);
  layout.cu_seqlens_host.push_back(static_cast<int32_t>(num_tokens));
  layout.cu_seqlens = StartsTensor(layout.cu_seqlens_host, device);
  layout.positions = positions.to(device);
  layout.sample_index = samples.to(device);
  return layout;
}

// The tokens of a place in the whole micro-batch, row by row.
std::vector<int64_t> TokensOfPlace(const SequenceLayout& whole, const ContextPlace& place) {
  std::vector<int64_t> tokens;
  for (size_t r = 0; r + 1 < whole.cu_seqlens_host.size(); ++r) {
    const int64_t begin = whole.cu_seqlens_host[r];
    const int64_t chunk = (whole.cu_seqlens_host[r + 1] - begin) / place.RowMultiple();
    for (const int64_t number : {int64_t{place.rank}, place.RowMultiple() - 1 - place.rank}) {
      for (int64_t i = 0; i < chunk; ++i) tokens.push_back(begin + number * chunk + i);
    }
  }
  return tokens;
}

std::vector<int32_t> DividedBy(std::vector<int32_t> starts, int divisor) {
  for (int32_t& start : starts) start /= divisor;
  return starts;
}

ContextMap MakeContextMap(std::shared_ptr<const SequenceLayout> whole, const ContextPlace& place, at::Device device) {
  ContextMap map;
  map.place = place;
  map.tokens_host = TokensOfPlace(*whole, place);
  map.chunk_starts_host = DividedBy(whole->cu_seqlens_host, 2 * place.size);
  map.chunk_starts = StartsTensor(map.chunk_starts_host, device);
  std::vector<int64_t> earlier, later, to_ranks, to_whole(whole->num_tokens);
  for (size_t r = 0; r + 1 < map.chunk_starts_host.size(); ++r) {
    const int64_t begin = map.chunk_starts_host[r], end = map.chunk_starts_host[r + 1];
    for (int64_t i = begin; i < end; ++i) {
      earlier.push_back(begin + i);  // the row begins at 2 · begin
      later.push_back(end + i);
    }
  }
  for (int rank = 0; rank < place.size; ++rank) {
    for (const int64_t token : TokensOfPlace(*whole, {rank, place.size})) {
      to_whole[token] = static_cast<int64_t>(to_ranks.size());
      to_ranks.push_back(token);
    }
  }
  map.earlier = IndexTensor(earlier, device);
  map.later = IndexTensor(later, device);
  map.to_ranks = IndexTensor(to_ranks, device);
  map.to_whole = IndexTensor(to_whole, device);
  map.whole = std::move(whole);
  return map;
}

}  // namespace

SequenceLayout MakeSequenceLayout(const std::vector<int64_t>& row_lengths, const std::vector<int64_t>& sample_indices,
                                  int64_t num_tokens, at::Device device, const ContextPlace& place) {
  TORCH_CHECK(num_tokens % place.RowMultiple() == 0, num_tokens, " tokens are not a multiple of ", place.RowMultiple(),
              ", as ", place.size, " context-parallel ranks need");
  SequenceLayout whole = WholeLayout(row_lengths, sample_indices, num_tokens, place.RowMultiple(), device);
  if (place.size == 1) return whole;
  SequenceLayout own;
  own.num_tokens = num_tokens / place.size;
  own.num_rows = whole.num_rows;
  own.max_row_length = whole.max_row_length / place.size;
  own.cu_seqlens_host = DividedBy(whole.cu_seqlens_host, place.size);
  own.cu_seqlens = StartsTensor(own.cu_seqlens_host, device);
  own.uniform = whole.uniform;
  own.row_samples = whole.row_samples;
  const auto map = std::make_shared<const ContextMap>(
      MakeContextMap(std::make_shared<const SequenceLayout>(std::move(whole)), place, device));
  const at::Tensor tokens = IndexTensor(map->tokens_host, device);
  own.positions = map->whole->positions.index_select(0, tokens);
  own.sample_index = map->whole->sample_index.index_select(0, tokens);
  own.context = map;
  return own;
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
