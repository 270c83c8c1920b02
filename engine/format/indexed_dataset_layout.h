// Constants of the indexed dataset's files. Internal to this folder.
#ifndef SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_LAYOUT_H_
#define SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace slipway::engine::format {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr size_t kIndexHeaderBytes = 34;

inline std::string IndexPath(const std::string& prefix) { return prefix + ".idx"; }
inline std::string DataPath(const std::string& prefix) { return prefix + ".bin"; }

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_INDEXED_DATASET_LAYOUT_H_
