// JSON data as YAML that any reader takes for the same data. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_YAML_WRITER_H_
#define SLIPWAY_ENGINE_SPEC_YAML_WRITER_H_

#include <nlohmann/json.hpp>
#include <string>

namespace slipway::engine::spec {

// One key or item a line, nested ones indented; ends with a newline. Texts must be UTF-8 (bytes that are not are
// replaced).
std::string JsonToYaml(const nlohmann::ordered_json& json);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_YAML_WRITER_H_
