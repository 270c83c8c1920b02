// TrainingSpec → YAML and JSON, as ReadSpec reads it back: snake_case keys in the order of the proto, maps sorted by
// key, integers as numbers, only fields that are set. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_WRITER_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_WRITER_H_

#include <string>

#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

std::string SpecToYaml(const v1::TrainingSpec& spec);
// Indented by two spaces; ends with a newline.
std::string SpecToJson(const v1::TrainingSpec& spec);

// A YAML scalar for a string: plain where YAML reads it back as the same string, else quoted.
std::string YamlString(const std::string& value);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_WRITER_H_
