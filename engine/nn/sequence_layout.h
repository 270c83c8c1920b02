// Where the rows (sequences) of a flat micro-batch lie. Activations are [T, H]: tokens flattened, rows end to end,
// padding only at the end. T is fixed for a run on CUDA; a CPU job may round it to a smaller bucket. Packing, sequence
// parallelism, context parallelism and CUDA graphs all follow from this one description; each pipeline stage makes its
// own from the deterministic sampler.
#ifndef SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_
#define SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace slipway::engine::nn {

struct SequenceLayout {
  int64_t num_tokens = 0;      // T, padding included
  int64_t num_rows = 0;        // rows in use; padding after the last one counts as a row of its own for attention
  int64_t max_row_length = 0;  // bound for kernels

  // Row r is [cu_seqlens[r], cu_seqlens[r + 1]); the rest of a fixed-length array repeats T.
  std::vector<int32_t> cu_seqlens_host;
  at::Tensor cu_seqlens;  // int32, on the device
  at::Tensor positions;   // int64 [T], from 0 in each row, on the device

  // Identity of each token for counter-based random numbers: the global sample index of its row and its position there;
  // the same on every layout.
  at::Tensor sample_index;  // int64 [T]

  // All rows have the same length and fill T: attention may run as one dense [rows, length] batch.
  bool uniform = false;
};

// The sample index of padding tokens; no sample of a run reaches it.
inline constexpr int64_t kPaddingSample = -1;

// Rows of the given lengths, padded to num_tokens; sample_indices[r] is row r's global sample index. cu_seqlens has
// row_lengths.size() + 2 entries: the padding is a last row, which may be empty. Give empty rows at the end to keep
// that length fixed over the batches of a run. Throws c10::Error when the rows do not fit.
SequenceLayout MakeSequenceLayout(const std::vector<int64_t>& row_lengths, const std::vector<int64_t>& sample_indices,
                                  int64_t num_tokens, at::Device device);

// The identity of the rank-th of `ranks` equal runs of the layout's tokens (sequence parallelism): num_tokens,
// positions and sample_index alone, as views; there are no rows. Throws c10::Error when the tokens do not divide.
SequenceLayout SliceOfTokens(const SequenceLayout& layout, int rank, int ranks);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_
