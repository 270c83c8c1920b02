// A JSON text as the tree that a YAML text makes (yaml_tree.h), with the place of every node. YAML reads nearly all
// JSON, but not characters above U+FFFF written as two \u escapes, which is how Python's json.dumps writes them.
// Internal to engine/spec. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_JSON_TREE_H_
#define SLIPWAY_ENGINE_SPEC_JSON_TREE_H_

#include <string_view>

#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {

// True for a file name that ends in .json, and for a text that is a whole JSON object.
bool IsJson(std::string_view text, std::string_view name);

// A fault with its place for what is not JSON (half of a surrogate pair, too, is none) or is nested too deeply.
YamlTree ParseJson(std::string_view text, std::string_view name);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_JSON_TREE_H_
