#include "engine/train/data_feed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/status_macros.h"
#include "engine/corpus/sample_order.h"

namespace slipway::engine::train {
namespace {

constexpr int64_t kCpuTokenMultiple = 32;

template <typename T>
at::Tensor ToDevice(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  // Pinned, so that the copy to a GPU runs beside the computation.
  const bool pin = device.is_cuda();
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(dtype).pinned_memory(pin));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return pin ? host.to(device, /*non_blocking=*/true) : host;
}

int64_t PaddedTokens(const std::vector<corpus::Sample>& samples, const BatchShape& shape) {
  const int64_t full = shape.rows * shape.seq_length;
  if (shape.device.is_cuda()) return full;
  const int64_t multiple = std::lcm(kCpuTokenMultiple, shape.token_multiple);
  int64_t needed = 0;
  for (const corpus::Sample& sample : samples) needed += static_cast<int64_t>(sample.tokens.size());
  const int64_t rounded = (std::max<int64_t>(needed, 1) + multiple - 1) / multiple * multiple;
  return std::min(rounded, full);
}

}  // namespace

model::MicroBatch MakeMicroBatch(const std::vector<corpus::Sample>& samples, const std::vector<int64_t>& sample_indices,
                                 const BatchShape& shape) {
  const int64_t num_tokens = PaddedTokens(samples, shape);
  std::vector<int64_t> tokens(num_tokens, 0), labels(num_tokens, 0), lengths, indices = sample_indices;
  std::vector<float> weights(num_tokens, 0.f);
  int64_t at = 0;
  for (const corpus::Sample& sample : samples) {
    std::copy(sample.tokens.begin(), sample.tokens.end(), tokens.begin() + at);
    std::copy(sample.labels.begin(), sample.labels.end(), labels.begin() + at);
    std::copy(sample.weights.begin(), sample.weights.end(), weights.begin() + at);
    lengths.push_back(static_cast<int64_t>(sample.tokens.size()));
    at += lengths.back();
  }
  lengths.resize(shape.rows, 0);
  indices.resize(shape.rows, nn::kPaddingSample);
  model::MicroBatch batch;
  batch.tokens = ToDevice(tokens, at::kLong, shape.device);
  batch.labels = ToDevice(labels, at::kLong, shape.device);
  batch.weights = ToDevice(weights, at::kFloat, shape.device);
  batch.layout = nn::MakeSequenceLayout(lengths, indices, num_tokens, shape.device);
  return batch;
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
      step.tokens += static_cast<int64_t>(sample.tokens.size());
      samples.push_back(std::move(sample));
    }
    step.micro_batches.push_back(MakeMicroBatch(samples, indices, shape_));
  }
  return step;
}

}  // namespace slipway::engine::train
