// RunState as fields and counters of a manifest. Thread-safe.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_MANIFEST_COUNTERS_H_
#define SLIPWAY_ENGINE_CHECKPOINT_MANIFEST_COUNTERS_H_

#include "absl/status/statusor.h"
#include "engine/checkpoint/run_state.h"
#include "engine/format/manifest.h"

namespace slipway::engine::checkpoint {

void StateToManifest(const RunState& state, format::Manifest& manifest);
// DataLoss naming the counter that is missing.
absl::StatusOr<RunState> StateFromManifest(const format::Manifest& manifest);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_MANIFEST_COUNTERS_H_
