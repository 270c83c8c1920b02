// Micro-batches of one data-parallel rank as tensors, the next step's made in the background.
#ifndef SLIPWAY_ENGINE_TRAIN_DATA_FEED_H_
#define SLIPWAY_ENGINE_TRAIN_DATA_FEED_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/corpus/sample_source.h"
#include "engine/model/stage_piece.h"

namespace slipway::engine::train {

struct StepBatch {
  std::vector<model::MicroBatch> micro_batches;  // this rank's
  double total_weight =
      0;               // Σ weights of the whole global batch, all ranks: known to each of them from the stream alone
  int64_t tokens = 0;  // this rank's, without padding
};

// A rank's micro-batch and what of it counts: a sum over the data- and context-parallel ranks counts everything once.
struct LocalBatch {
  model::MicroBatch batch;
  int64_t tokens = 0;  // without padding
  double weight = 0;   // Σ weights
};

// How samples become the micro-batches of a rank.
struct BatchShape {
  int64_t rows = 1;  // samples of a micro-batch
  int64_t seq_length = 0;
  nn::ContextPlace context;    // which of each row's chunks the rank has
  int64_t token_multiple = 1;  // the tokens of a rank divide by it: the tensor-parallel size under sequence parallelism
  at::Device device = at::kCPU;
};

// At most `rows` samples as one flat micro-batch; sample_indices identify the rows for random numbers. Fewer samples
// leave empty rows. The context-parallel ranks together have rows × seq_length tokens on CUDA, so that every step has
// the same shapes; on a CPU the next multiple of 32 (and of what the layout needs) above what the samples need.
// REQUIRES: seq_length is a multiple of context.RowMultiple(), and rows × seq_length of context.size × token_multiple.
LocalBatch MakeMicroBatch(const std::vector<corpus::Sample>& samples, const std::vector<int64_t>& sample_indices,
                          const BatchShape& shape);

// Thread-safety: one thread calls Take.
class DataFeed {
 public:
  // REQUIRES: shape.rows == slicing.micro_batch_size.
  DataFeed(std::shared_ptr<const corpus::SampleSource> source, const corpus::BatchSlicing& slicing,
           const BatchShape& shape);
  ~DataFeed();
  DataFeed(const DataFeed&) = delete;
  DataFeed& operator=(const DataFeed&) = delete;

  // The batch of the samples from `consumed` on. Asking for them in order finds each one prepared. DataLoss and the
  // like from the source; FailedPrecondition when no token of the whole global batch carries a loss. With a cause
  // class.
  absl::StatusOr<StepBatch> Take(int64_t consumed);

 private:
  absl::StatusOr<StepBatch> Make(int64_t consumed) const;

  const std::shared_ptr<const corpus::SampleSource> source_;
  const corpus::BatchSlicing slicing_;
  const BatchShape shape_;
  int64_t prepared_for_ = -1;
  std::future<absl::StatusOr<StepBatch>> prepared_;
};

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_DATA_FEED_H_
