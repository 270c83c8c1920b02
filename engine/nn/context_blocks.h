// The arithmetic of ContextAttention: this rank's queries against one rank's block of keys and values at a time. What a
// block can be read by follows from the order of its two chunks (see ContextMap):
//
//   own block            all queries, causal among themselves
//   of an earlier rank   all queries read its earlier chunk, none its later one
//   of a later rank      the queries of the later chunk read both of its chunks
//
// Nothing here communicates.
#ifndef SLIPWAY_ENGINE_NN_CONTEXT_BLOCKS_H_
#define SLIPWAY_ENGINE_NN_CONTEXT_BLOCKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/nn/functions.h"
#include "engine/nn/sequence_layout.h"

namespace slipway::engine::nn::internal {

// Where rows lie, on the device and on the host; a copy, because a backward may outlive its layout.
struct RowStarts {
  at::Tensor device;
  std::vector<int64_t> host;
  int64_t longest = 0;
};

struct BlockCall {
  std::shared_ptr<const ContextMap> map;
  RowStarts rows;    // of all local tokens
  RowStarts chunks;  // of the earlier, or of the later, chunks alone
  bool uniform = false;
  HeadCounts counts;
  double scale = 0;
};
BlockCall MakeBlockCall(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts);

class LocalQueries {
 public:
  // q [T, heads · head_dim], columns of qkv. `call` outlives it.
  LocalQueries(const BlockCall& call, at::Tensor q) : call_(call), q_(std::move(q)) {}

  // Forward. kv [T, 2 · groups · head_dim] is the block of that rank of the group; the own block comes first.
  void Attend(int source, const at::Tensor& kv);
  // Output [T, heads · head_dim] and log-sum-exp [heads, T], once every block was attended to.
  std::pair<at::Tensor, at::Tensor> Result();

  // Backward, of the forward whose Result was (out, lse). The gradient of a block is of its earlier chunk alone where
  // nothing reads the other.
  struct BlockGradient {
    at::Tensor dkv;
    bool earlier_chunk_only = false;
  };
  void BeginBackward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse);
  BlockGradient Backward(int source, const at::Tensor& kv);
  at::Tensor QueryGradient() const { return dq_; }

  // Zeros for the sum of a block's gradients, in the type of the statistics.
  at::Tensor NewGradient(const at::Tensor& kv) const;
  void AddTo(at::Tensor sum, const BlockGradient& gradient) const;

 private:
  enum class Reading { kOwnBlock, kEarlierBlock, kLaterBlock };
  Reading ReadingOf(int source) const;
  // The tokens (of dimension `dim`) that take part.
  at::Tensor QueriesOf(Reading reading, const at::Tensor& x, int64_t dim = 0) const;
  at::Tensor KeysOf(Reading reading, const at::Tensor& kv) const;
  void Merge(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& block_out, const at::Tensor& block_lse);

  const BlockCall& call_;
  at::Tensor q_;
  at::Tensor sum_;  // merged output so far [T, heads, head_dim], in the type of the statistics
  at::Tensor lse_;
  at::Tensor dout_, out_, dq_;
};

}  // namespace slipway::engine::nn::internal

#endif  // SLIPWAY_ENGINE_NN_CONTEXT_BLOCKS_H_
