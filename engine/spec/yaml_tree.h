// A YAML or JSON text as a tree with the place of every node. YAML's is made from yaml-cpp's events: unlike its Node it
// keeps duplicate keys, shows aliases where they are used (and never expands them), and sees a second document.
// Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_YAML_TREE_H_
#define SLIPWAY_ENGINE_SPEC_YAML_TREE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/spec/spec_fault.h"

namespace slipway::engine::spec {

// A spec has four levels; a text that goes deeper than this is refused before anything recurses into it.
inline constexpr size_t kMaxTreeDepth = 32;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap, kAlias };
  Kind kind = Kind::kNull;
  int line = 0;  // from 1
  int column = 0;
  bool quoted = false;                                 // a scalar in quotes or as a block
  std::string tag;                                     // an explicit one, such as "!!int" written out
  std::string value;                                   // of a scalar
  std::vector<YamlNode> items;                         // of a sequence
  std::vector<std::pair<YamlNode, YamlNode>> entries;  // of a map, in order
};

struct YamlTree {
  YamlNode root;
  SpecFaults faults;  // not readable, not UTF-8, too large, empty, more than one document; then root is not meaningful
};

// JSON where the name ends in .json or the text is a JSON object, else YAML. `name` stands for the file in locations.
YamlTree ParseYamlOrJson(std::string_view text, std::string_view name);

// "job.yaml:5:31".
std::string LocationText(std::string_view name, const YamlNode& node);

// What stands there, for messages: "`abc`", "a list", "a section", "nothing". Long values are cut.
std::string NodeText(const YamlNode& node);

// UTF-8 without surrogates and overlong forms.
bool IsValidUtf8(std::string_view text);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_YAML_TREE_H_
