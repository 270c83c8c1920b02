#include "engine/train/data_feed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/status_macros.h"
#include "engine/corpus/sample_order.h"
#include "engine/train/datasets.h"

namespace slipway::engine::train {
namespace {

constexpr int64_t kCpuTokenMultiple = 32;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <typename T>
at::Tensor ToDevice(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  // Pinned, so that the copy to a GPU runs beside the computation.
  const bool pin = device.is_cuda();
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(dtype).pinned_memory(pin));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return pin ? host.to(device, /*non_blocking=*/true) : host;
}

// Tokens that the ranks that share the rows have together.
int64_t PaddedTokens(const std::vector<corpus::Sample>& samples, const BatchShape& shape) {
  const int64_t full = shape.rows * shape.seq_length, row_multiple = shape.context.RowMultiple();
  if (shape.device.is_cuda()) return full;
  const int64_t multiple =
      std::lcm(std::lcm(kCpuTokenMultiple, row_multiple), shape.context.size * shape.token_multiple);
  int64_t needed = 0;
  for (const corpus::Sample& sample : samples) {
    needed += RoundUp(static_cast<int64_t>(sample.tokens.size()), row_multiple);
  }
  return std::min(RoundUp(std::max<int64_t>(needed, 1), multiple), full);
}

// The tokens of the whole micro-batch, row by row, and those of them that a rank has.
template <typename T, typename From>
std::vector<T> LocalTokens(const std::vector<corpus::Sample>& samples, std::vector<From> corpus::Sample::*values,
                           const nn::SequenceLayout& layout) {
  const nn::SequenceLayout& whole = layout.context ? *layout.context->whole : layout;
  std::vector<T> all(whole.num_tokens, T{0});
  for (size_t row = 0; row < samples.size(); ++row) {
    const std::vector<From>& from = samples[row].*values;
    std::copy(from.begin(), from.end(), all.begin() + whole.cu_seqlens_host[row]);
  }
  if (!layout.context) return all;
  std::vector<T> own;
  for (const int64_t token : layout.context->tokens_host) own.push_back(all[token]);
  return own;
}

// How many of a rank's tokens are no padding.
int64_t CountTokens(const std::vector<corpus::Sample>& samples, const nn::SequenceLayout& layout) {
  int64_t count = 0;
  if (!layout.context) {
    for (const corpus::Sample& sample : samples) count += static_cast<int64_t>(sample.tokens.size());
    return count;
  }
  const std::vector<int32_t>& starts = layout.context->whole->cu_seqlens_host;
  size_t row = 0;
  for (const int64_t token : layout.context->tokens_host) {
    while (token >= starts[row + 1]) ++row;
    count += row < samples.size() && token - starts[row] < static_cast<int64_t>(samples[row].tokens.size());
  }
  return count;
}

}  // namespace

LocalBatch MakeMicroBatch(const std::vector<corpus::Sample>& samples, const std::vector<int64_t>& sample_indices,
                          const BatchShape& shape) {
  std::vector<int64_t> lengths, indices = sample_indices;
  for (const corpus::Sample& sample : samples) lengths.push_back(static_cast<int64_t>(sample.tokens.size()));
  lengths.resize(shape.rows, 0);
  indices.resize(shape.rows, nn::kPaddingSample);
  LocalBatch local;
  model::MicroBatch& batch = local.batch;
  batch.layout = nn::MakeSequenceLayout(lengths, indices, PaddedTokens(samples, shape), shape.device, shape.context);
  const std::vector<float> weights = LocalTokens<float>(samples, &corpus::Sample::weights, batch.layout);
  batch.tokens =
      ToDevice(LocalTokens<int64_t>(samples, &corpus::Sample::tokens, batch.layout), at::kLong, shape.device);
  batch.labels =
      ToDevice(LocalTokens<int64_t>(samples, &corpus::Sample::labels, batch.layout), at::kLong, shape.device);
  batch.weights = ToDevice(weights, at::kFloat, shape.device);
  local.tokens = CountTokens(samples, batch.layout);
  local.weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  return local;
}

DataFeed::DataFeed(std::shared_ptr<const corpus::SampleSource> source, const corpus::BatchSlicing& slicing,
                   const BatchShape& shape)
    : source_(std::move(source)), slicing_(slicing), shape_(shape) {}

DataFeed::~DataFeed() {
  if (prepared_.valid()) prepared_.wait();
}

absl::StatusOr<StepBatch> DataFeed::Take(int64_t consumed) {
  absl::StatusOr<StepBatch> batch = prepared_.valid() && prepared_for_ == consumed ? prepared_.get() : Make(consumed);
  if (prepared_.valid()) prepared_.wait();
  if (!batch.ok()) return DataFault(batch.status());
  prepared_for_ = consumed + slicing_.global_batch_size;
  prepared_ = std::async(std::launch::async, [this, next = prepared_for_] { return Make(next); });
  return batch;
}

absl::StatusOr<StepBatch> DataFeed::Make(int64_t consumed) const {
  StepBatch step;
  SLIPWAY_ASSIGN_OR_RETURN(step.total_weight, corpus::TotalLossWeight(*source_, consumed, slicing_.global_batch_size));
  if (step.total_weight <= 0) {
    return absl::FailedPreconditionError(absl::StrCat("no token of samples ", consumed, " to ",
                                                      consumed + slicing_.global_batch_size - 1, " carries a loss"));
  }
  for (int64_t m = 0; m < slicing_.micro_batches(); ++m) {
    std::vector<corpus::Sample> samples;
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < slicing_.micro_batch_size; ++i) {
      indices.push_back(slicing_.SampleIndex(consumed, m, i));
      SLIPWAY_ASSIGN_OR_RETURN(corpus::Sample sample, source_->Get(indices.back()));
      samples.push_back(std::move(sample));
    }
    LocalBatch local = MakeMicroBatch(samples, indices, shape_);
    step.tokens += local.tokens;
    step.micro_batches.push_back(std::move(local.batch));
  }
  return step;
}

}  // namespace slipway::engine::train
