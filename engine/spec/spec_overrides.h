// `section.key=value` on top of a spec. The value is YAML, read by the rules of spec_reader.h: `training.seed=7`,
// `labels.team=a`, `env.FOO=bar`, `labels={team: a}`; `null` resets a field (to its default), a map entry or a section.
// For a field of type string the text after `=` is taken as it is, apart from `null` and quotes around all of it, so
// that `name=7` needs no quotes. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_OVERRIDES_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_OVERRIDES_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/spec/spec_fault.h"
#include "engine/spec/spec_reader.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Applies all overrides in order, the last one wins. Faults have the location "--set #2" (counted from 1).
// Also brings `locations` up to date, when given.
SpecFaults ApplyOverrides(absl::Span<const std::string> overrides, v1::TrainingSpec* spec,
                          SpecLocations* locations = nullptr);

// For a resume request: the overrides as a patch and the fields that they reset.
struct SpecPatch {
  v1::TrainingSpec patch;
  std::vector<std::string> clear_paths;
  SpecFaults faults;
};
SpecPatch PatchFromOverrides(absl::Span<const std::string> overrides);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_OVERRIDES_H_
