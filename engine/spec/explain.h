// What a field means, from the comments and (meta) options of training_spec.proto: the source of `slipway spec explain`
// and of docs/configuration.md. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_EXPLAIN_H_
#define SLIPWAY_ENGINE_SPEC_EXPLAIN_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace slipway::engine::spec {

// Text for a terminal: of one field ("training.seq_length"), of a section and its fields ("training"), or of everything
// (""). NotFound with the nearest key.
absl::StatusOr<std::string> Explain(std::string_view path);

// The same for programs: {"path", "type", "default", …}, and for a section {"path", "type": "section", "fields": […]}.
absl::StatusOr<nlohmann::ordered_json> ExplainJson(std::string_view path);

// docs/configuration.md.
std::string ConfigurationMarkdown();

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_EXPLAIN_H_
