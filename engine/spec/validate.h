// Everything that can be said about a spec without opening a file or a GPU. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_VALIDATE_H_
#define SLIPWAY_ENGINE_SPEC_VALIDATE_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "engine/arch/model_arch.h"
#include "engine/spec/spec_fault.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

struct ValidateOptions {
  // The architecture of model.hf_path, where its config.json has been read; a preset's or explicit one is made here.
  std::optional<arch::ModelArch> arch;
  // Paths must be absolute: a spec that came from a CLI is.
  bool require_absolute_paths = true;
  // Fields and sections of the text whose values could not be read: what would only follow from that is left out.
  std::set<std::string> unread;
};

// All faults of a spec, resolved or not: required fields, ranges, choices, names, unknown fields from a newer client,
// rules between fields, the layout, and what this version does not support. Empty when valid.
SpecFaults Validate(const v1::TrainingSpec& spec, const ValidateOptions& options = {});

// Empty when `name` may name a job or a project, else the rule: [a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?
std::string NameFault(std::string_view name);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_VALIDATE_H_
