// The JSON header of a safetensors file, as text. Internal to this folder. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_FORMAT_SAFETENSORS_HEADER_H_
#define SLIPWAY_ENGINE_FORMAT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/format/safetensors.h"

namespace slipway::engine::format {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // offsets count from the end of the header
  std::map<std::string, std::string> metadata;
};

// Form only: types, required fields, duplicates, and that shape and byte range agree.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text);

// Compact JSON in the order of `tensors`, without the padding.
std::string SafetensorsHeaderText(const SafetensorsHeader& header);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_SAFETENSORS_HEADER_H_
