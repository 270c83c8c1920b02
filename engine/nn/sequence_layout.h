// Where the rows (sequences) of a flat micro-batch lie. Activations are [T, H]: tokens flattened, rows end to end,
// padding only at the end. T is fixed for a run on CUDA; a CPU job may round it to a smaller bucket. Packing, sequence
// parallelism, context parallelism and CUDA graphs all follow from this one description; each pipeline stage makes its
// own from the deterministic sampler.
#ifndef SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_
#define SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace slipway::engine::nn {

struct ContextMap;

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

  // The samples of the micro-batch: int64 [rows given], kPaddingSample for an empty row, on the device. The same on all
  // ranks that share them, however their tokens are cut.
  at::Tensor row_samples;

  // All rows have the same length and fill T: attention may run as one dense [rows, length] batch.
  bool uniform = false;

  // Set when several ranks share each row (context parallelism). All above then speaks of this rank's tokens: of each
  // row the rank's two chunks, one after the other. Positions are those in the whole row.
  std::shared_ptr<const ContextMap> context;
};

// A rank's place among those that share each row.
struct ContextPlace {
  int rank = 0;
  int size = 1;

  // The length of every row is a multiple of this: two chunks a rank.
  int64_t RowMultiple() const { return size == 1 ? 1 : 2 * int64_t{size}; }
};

// How rows are cut over the ranks: a row has 2 · size chunks of one length, and rank r the chunks r and 2 · size − 1 −
// r, so that under a causal mask all ranks have the same work (Megatron-LM's zigzag).
struct ContextMap {
  ContextPlace place;
  // The whole micro-batch: rows padded to RowMultiple(). The padding of a row has kPaddingSample.
  std::shared_ptr<const SequenceLayout> whole;
  std::vector<int64_t> tokens_host;  // for each of this rank's tokens its number in `whole`

  // The earlier chunks alone, or the later ones: row r of them is [chunk_starts[r], chunk_starts[r + 1]).
  std::vector<int32_t> chunk_starts_host;
  at::Tensor chunk_starts;    // int32, on the device
  at::Tensor earlier, later;  // int64 [T / 2]: this rank's tokens that they are
  at::Tensor to_ranks;        // int64 [size · T]: the tokens in `whole` of all ranks, one rank after the other
  at::Tensor to_whole;        // its inverse
};

// The sample index of padding tokens; no sample of a run reaches it.
inline constexpr int64_t kPaddingSample = -1;

// Rows of the given lengths, padded to num_tokens; sample_indices[r] is row r's global sample index. cu_seqlens has
// row_lengths.size() + 2 entries: the padding is a last row, which may be empty. Give empty rows at the end to keep
// that length fixed over the batches of a run. With a place of more than one rank, row_lengths and num_tokens are those
// of the whole micro-batch, and the layout is the rank's share of it. Throws c10::Error when the rows do not fit, or
// num_tokens is not a multiple of place.RowMultiple().
SequenceLayout MakeSequenceLayout(const std::vector<int64_t>& row_lengths, const std::vector<int64_t>& sample_indices,
                                  int64_t num_tokens, at::Device device, const ContextPlace& place = {});

// The identity of the rank-th of `ranks` equal runs of the layout's tokens (sequence parallelism): num_tokens,
// positions and sample_index alone, as views; there are no rows. Throws c10::Error when the tokens do not divide.
SequenceLayout SliceOfTokens(const SequenceLayout& layout, int rank, int ranks);

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_SEQUENCE_LAYOUT_H_
