// The golden models of tests/golden/data, read whole (README.md there).
#ifndef SLIPWAY_TESTS_GOLDEN_GOLDEN_MODELS_H_
#define SLIPWAY_TESTS_GOLDEN_GOLDEN_MODELS_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/arch/hf_config.h"
#include "tests/support/safetensors_tensors.h"
#include "tests/support/source_dir.h"

namespace slipway::testing {

using NamedTensors = std::map<std::string, at::Tensor>;

inline constexpr double kGoldenTolerance = 1e-4;

struct Golden {
  engine::arch::ModelArch arch;
  NamedTensors weights, values;
  nlohmann::json json;
};

inline Golden ReadGolden(const std::string& name) {
  const std::string directory = std::string(SLIPWAY_SOURCE_DIR) + "/tests/golden/data/" + name;
  return {engine::arch::ReadHfConfig(directory + "/config.json").value(),
          ReadSafetensors(directory + "/model.safetensors"), ReadSafetensors(directory + "/golden.safetensors"),
          nlohmann::json::parse(ReadWholeFile(directory + "/golden.json"))};
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_GOLDEN_GOLDEN_MODELS_H_
