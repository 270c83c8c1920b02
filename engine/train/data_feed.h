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

// `rows` samples as one flat micro-batch of `num_tokens` tokens on `device`; sample_indices identify the rows for
// random numbers. Fewer samples than rows leave empty rows.
model::MicroBatch MakeMicroBatch(const std::vector<corpus::Sample>& samples, const std::vector<int64_t>& sample_indices,
                                 int64_t rows, int64_t num_tokens, at::Device device);

// Tokens that a micro-batch is padded to. CUDA: always rows × seq_length, so that every step has the same shapes. CPU:
// the next multiple of 32 above what the rows need.
int64_t PaddedTokens(const std::vector<corpus::Sample>& samples, int64_t rows, int64_t seq_length, at::Device device);

// Thread-safety: one thread calls Take.
class DataFeed {
 public:
  DataFeed(std::shared_ptr<const corpus::SampleSource> source, const corpus::BatchSlicing& slicing, int64_t seq_length,
           at::Device device);
  ~DataFeed();
  DataFeed(const DataFeed&) = delete;
  DataFeed& operator=(const DataFeed&) = delete;

  // The batch of the samples from `consumed` on. Asking for them in order finds each one prepared. DataLoss and the like
  // from the source; FailedPrecondition when no token of the whole global batch carries a loss. With a cause class.
  absl::StatusOr<StepBatch> Take(int64_t consumed);

 private:
  absl::StatusOr<StepBatch> Make(int64_t consumed) const;

  const std::shared_ptr<const corpus::SampleSource> source_;
  const corpus::BatchSlicing slicing_;
  const int64_t seq_length_;
  const at::Device device_;
  int64_t prepared_for_ = -1;
  std::future<absl::StatusOr<StepBatch>> prepared_;
};

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_DATA_FEED_H_
