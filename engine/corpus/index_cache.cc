#include "engine/corpus/index_cache.h"

#include <spdlog/spdlog.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {
namespace {

// The text of a cache file: kMagic, the key, a checksum of what follows, then each array as its count (8 bytes) and its
// elements. A cache is read on the machine that wrote it or one like it, so numbers lie as the machine has them.
constexpr std::string_view kMagic = "slipway-index-1\n";

template <typename T>
void AppendArray(const std::vector<T>& values, std::string& out) {
  const uint64_t count = values.size();
  out.append(reinterpret_cast<const char*>(&count), sizeof(count));
  out.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

template <typename T>
bool TakeArray(std::string_view& text, std::vector<T>& values) {
  uint64_t count = 0;
  if (text.size() < sizeof(count)) return false;
  std::memcpy(&count, text.data(), sizeof(count));
  text.remove_prefix(sizeof(count));
  if (count > text.size() / sizeof(T)) return false;
  values.resize(count);
  std::memcpy(values.data(), text.data(), count * sizeof(T));
  text.remove_prefix(count * sizeof(T));
  return true;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The digest without "xxh3-128:", for a file name.
std::string Digits(const std::string& digest) { return digest.substr(digest.find(':') + 1); }

}  // namespace

absl::StatusOr<std::string> IndexCacheKey(FileSystem& files, const std::string& prefix, std::string_view parameters) {
  std::string text = StrCat(prefix, "\n", parameters, "\n");
  for (const char* suffix : {".idx", ".bin"}) {
    SLIPWAY_ASSIGN_OR_RETURN(const FileInfo info, files.Stat(prefix + suffix));
    text += StrCat(info.size, " ", absl::ToUnixNanos(info.modified), "\n");
  }
  return Digits(ChecksumOf(text));
}

std::string WriteIndices(const MegatronIndices& indices, std::string_view key) {
  std::string arrays;
  AppendArray(indices.document_index, arrays);
  AppendArray(indices.sample_documents, arrays);
  AppendArray(indices.sample_offsets, arrays);
  AppendArray(indices.shuffle_index, arrays);
  return StrCat(kMagic, key, "\n", ChecksumOf(arrays), "\n", arrays);
}

std::optional<MegatronIndices> ReadIndices(std::string_view text, std::string_view key) {
  if (!TakePrefix(text, kMagic) || !TakePrefix(text, key) || !TakePrefix(text, "\n")) return std::nullopt;
  const size_t line = text.find('\n');
  if (line == std::string_view::npos) return std::nullopt;
  const std::string_view checksum = text.substr(0, line);
  text.remove_prefix(line + 1);
  if (ChecksumOf(text) != checksum) return std::nullopt;
  MegatronIndices indices;
  if (!TakeArray(text, indices.document_index) || !TakeArray(text, indices.sample_documents) ||
      !TakeArray(text, indices.sample_offsets) || !TakeArray(text, indices.shuffle_index) || !text.empty() ||
      indices.sample_documents.size() != indices.shuffle_index.size() + 1 ||
      indices.sample_offsets.size() != indices.sample_documents.size()) {
    return std::nullopt;
  }
  return indices;
}

absl::StatusOr<MegatronIndices> CachedIndices(FileSystem& files, const std::string& directory, const std::string& key,
                                              const std::function<absl::StatusOr<MegatronIndices>()>& build) {
  if (directory.empty()) return build();
  const std::string path = JoinPath(directory, StrCat(key, ".index"));
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  if (absl::StatusOr<std::string> text = files.ReadFile(path, kMaxBytes); text.ok()) {
    if (std::optional<MegatronIndices> indices = ReadIndices(*text, key)) return *std::move(indices);
    spdlog::warn("{} is damaged; the indices are built anew", path);
  }
  SLIPWAY_ASSIGN_OR_RETURN(MegatronIndices indices, build());
  absl::Status written = files.MakeDirectories(directory);
  if (written.ok()) written = files.WriteFileAtomically(path, WriteIndices(indices, key));
  if (!written.ok()) spdlog::warn("the sample indices are not cached: {}", std::string(written.message()));
  return indices;
}

}  // namespace slipway::engine::corpus
