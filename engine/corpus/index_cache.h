// Sample indices on disk, so that a restart need not build them again. A cache is only ever a shortcut: one that is
// missing, torn, of another version or made from other data is built anew, and a directory that cannot be written to
// costs nothing but time. Builders at the same time each write their own file and rename it; both are equal.
#ifndef SLIPWAY_ENGINE_CORPUS_INDEX_CACHE_H_
#define SLIPWAY_ENGINE_CORPUS_INDEX_CACHE_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/corpus/megatron_order.h"

namespace slipway::engine::corpus {

// What the indices depend on: the dataset's files (size and time of the last change) and `parameters`.
absl::StatusOr<std::string> IndexCacheKey(FileSystem& files, const std::string& prefix, std::string_view parameters);

// Nothing when `text` is not what WriteIndices made for this key.
std::optional<MegatronIndices> ReadIndices(std::string_view text, std::string_view key);
std::string WriteIndices(const MegatronIndices& indices, std::string_view key);

// An empty `directory` means no cache.
absl::StatusOr<MegatronIndices> CachedIndices(FileSystem& files, const std::string& directory, const std::string& key,
                                              const std::function<absl::StatusOr<MegatronIndices>()>& build);

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_INDEX_CACHE_H_
