#include "engine/train/evaluator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/status_macros.h"
#include "engine/topology/pipeline_schedule.h"
#include "engine/train/datasets.h"

namespace slipway::engine::train {
namespace {

// This rank's micro-batches of the global batch from `first` on; samples at `end` and after are not there.
absl::StatusOr<std::vector<model::MicroBatch>> EvaluationBatches(const corpus::SampleSource& source,
                                                                 const EvaluatorOptions& options, int64_t first,
                                                                 int64_t end, double& weight) {
  std::vector<model::MicroBatch> batches;
  const corpus::BatchSlicing& slicing = options.slicing;
  for (int64_t m = 0; m < slicing.micro_batches(); ++m) {
    std::vector<corpus::Sample> samples;
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < slicing.micro_batch_size; ++i) {
      const int64_t k = slicing.SampleIndex(first, m, i);
      if (k >= end) break;
      SLIPWAY_ASSIGN_OR_RETURN(corpus::Sample sample, source.Get(k));
      samples.push_back(std::move(sample));
      indices.push_back(k);
    }
    LocalBatch local = MakeMicroBatch(samples, indices, options.shape);
    weight += local.weight;
    batches.push_back(std::move(local.batch));
  }
  return batches;
}

}  // namespace

absl::StatusOr<EvaluationResult> Evaluate(parallel::PipelineRunner& runner, const corpus::SampleSource& source,
                                          const EvaluatorOptions& options, const comm::ParallelGroups& groups) {
  const int64_t batch = options.slicing.global_batch_size;
  // A set that is asked for more than it holds is read again, as Megatron-LM does.
  const int64_t end = options.iterations.has_value() ? *options.iterations * batch : source.epoch_size();
  SLIPWAY_ASSIGN_OR_RETURN(
      const topology::PipelineSchedule schedule,
      topology::ForwardOnly(groups.pp->size(), runner.num_chunks(), static_cast<int>(options.slicing.micro_batches())));
  double loss = 0, weight = 0;
  for (int64_t first = 0; first < end; first += batch) {
    const absl::StatusOr<std::vector<model::MicroBatch>> batches =
        EvaluationBatches(source, options, first, end, weight);
    if (!batches.ok()) return DataFault(batches.status());
    parallel::StepInput input;
    input.micro_batch = [&](int m) { return (*batches)[m]; };
    loss += runner.Evaluate(schedule, input).item<double>();
  }
  at::Tensor sums = at::tensor({loss, weight}, at::kDouble).to(options.shape.device);
  // Each stage read the same samples: their weights count once, where the loss is.
  if (groups.pp->rank() != groups.pp->size() - 1) sums.zero_();
  const at::Tensor host = parallel::SumOverReplicasAndStages(sums, groups).cpu();
  EvaluationResult result;
  result.weight = host[1].item<double>();
  result.loss = result.weight > 0 ? host[0].item<double>() / result.weight : std::numeric_limits<double>::quiet_NaN();
  return result;
}

}  // namespace slipway::engine::train
