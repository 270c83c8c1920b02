// The datasets that a spec names, opened and checked.
#ifndef SLIPWAY_ENGINE_TRAIN_DATASETS_H_
#define SLIPWAY_ENGINE_TRAIN_DATASETS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/arch/model_arch.h"
#include "engine/corpus/sample_source.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::train {

struct Datasets {
  std::shared_ptr<const corpus::SampleSource> training;
  std::shared_ptr<const corpus::SampleSource> validation;  // null when there is none
  v1::DatasetReport report;
};

// cache_dir: where index caches go when the spec names no place and the data's own is not writable.
// Errors name file and line, or dataset, document and token id. Token ids beyond the model's vocabulary are refused, in
// indexed data when they are read: the preflight looks at all of them before (engine/corpus/token_scan.h).
absl::StatusOr<Datasets> OpenDatasets(const v1::TrainingSpec& resolved, const arch::ModelArch& arch,
                                      const std::string& cache_dir, FileSystem& files);

// An error of a dataset with its cause class: DATA, which no restart mends, or STORAGE where the disk may come back.
absl::Status DataFault(const absl::Status& status);

}  // namespace slipway::engine::train

#endif  // SLIPWAY_ENGINE_TRAIN_DATASETS_H_
