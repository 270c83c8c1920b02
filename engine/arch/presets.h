// Architectures by name, equal to the published config.json files (spec: model.preset). Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_ARCH_PRESETS_H_
#define SLIPWAY_ENGINE_ARCH_PRESETS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"

namespace slipway::engine::arch {

// "llama3_2_1b", "llama3_1_8b", "qwen2_5_0_5b", "qwen3_0_6b", "smollm2_135m", "tiny_llama" (for tests), ... in order of
// family and size.
std::vector<std::string_view> PresetNames();

// NotFound naming the nearest name and all names.
absl::StatusOr<ModelArch> FindPreset(std::string_view name);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_PRESETS_H_
