// Loss over a validation set, the same on every layout.
#ifndef SLIPWAY_ENGINE_TRAIN_EVALUATOR_H_
#define SLIPWAY_ENGINE_TRAIN_EVALUATOR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/comm/parallel_groups.h"
#include "engine/corpus/sample_source.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/train/data_feed.h"

namespace slipway::engine::train {

struct EvaluatorOptions {
  corpus::BatchSlicing slicing;
  BatchShape shape;
  // Global batches; unset: every sample of the set once.
  std::optional<int64_t> iterations;
};

struct EvaluationResult {
  double loss = 0;  // Σ token loss × weight / Σ weight; NaN when nothing carries a loss
  double weight = 0;
};

// All ranks call it alike. Errors of the data carry a cause class. Exceptions of LibTorch and of communication pass
// through.
absl::StatusOr<EvaluationResult> Evaluate(parallel::PipelineRunner& runner, const corpus::SampleSource& source,
                                          const EvaluatorOptions& options, const comm::ParallelGroups& groups);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_EVALUATOR_H_
