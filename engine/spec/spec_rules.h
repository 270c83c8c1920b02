// Parts of Validate. Internal to engine/spec. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_

#include "engine/spec/spec_fault.h"
#include "engine/spec/validate.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Each field by itself: its (meta) option, texts, names, paths, environment, labels.
void CheckFields(const v1::TrainingSpec& spec, const ValidateOptions& options, SpecFaults* faults);

// Rules between fields. `resolved` is what Resolve makes of a spec.
void CheckModel(const v1::TrainingSpec& resolved, const ValidateOptions& options, SpecFaults* faults);
void CheckData(const v1::TrainingSpec& resolved, SpecFaults* faults);
void CheckSchedule(const v1::TrainingSpec& resolved, SpecFaults* faults);
void CheckLayout(const v1::TrainingSpec& resolved, const ValidateOptions& options, SpecFaults* faults);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_
