// `manifest.json`, the table of contents of a checkpoint (docs/formats/checkpoint.md). A directory without a valid one
// is not a checkpoint. Thread-safe: values and pure functions.
#ifndef SLIPWAY_ENGINE_FORMAT_MANIFEST_H_
#define SLIPWAY_ENGINE_FORMAT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "engine/format/reshard.h"

namespace slipway::engine::format {

inline constexpr int64_t kManifestFormatVersion = 2;
inline constexpr char kManifestFile[] = "manifest.json";

// What is stored of a parameter.
enum class StateKind { kWeight, kMaster, kExpAvg, kExpAvgSq };
std::string_view StateKindName(StateKind kind);  // "weight", "master", "exp_avg", "exp_avg_sq"
std::optional<StateKind> StateKindFromName(std::string_view name);

// One attempt of a job and where it continued from. A job that started fresh has no fork.
struct LineageEntry {
  struct Fork {
    int64_t epoch = 0;
    int64_t step = 0;
    friend bool operator==(const Fork&, const Fork&) = default;
  };
  int64_t epoch = 0;
  std::optional<Fork> forked_from;
  friend bool operator==(const LineageEntry&, const LineageEntry&) = default;
};

// Neighbouring elements of a tensor, stored as they lie from byte_offset on in one file.
struct ManifestShard {
  std::string file;
  int64_t byte_offset = 0;
  Piece piece;
};

struct ManifestTensor {
  std::string name;  // Hugging Face's
  StateKind kind = StateKind::kWeight;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // global; padding is never stored
  // A tied tensor names the one that holds its elements, and has no shards.
  std::string alias_of;
  std::vector<ManifestShard> shards;
};

struct ManifestFile {
  int64_t size = 0;
  std::string checksum;  // as ChecksumOf gives it
};

struct Manifest {
  std::string job_id;  // whose checkpoint this is; never empty
  int64_t step = 0;
  int64_t epoch = 0;  // of the attempt that wrote it
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  std::string resolved_spec = "{}";     // a JSON object, opaque here
  std::map<std::string, int64_t> mesh;  // axis name -> size
  std::vector<LineageEntry> lineage;    // oldest first; the last is `epoch`
  std::vector<ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;  // name in the directory -> contents; the manifest itself is not in it
  // Training state that is no tensor: skipped steps, loss scale, …
  std::map<std::string, int64_t> counters;
  std::map<std::string, double> values;

  // Of all its files.
  int64_t TotalBytes() const;
  // nullptr when there is none. Follows no alias.
  const ManifestTensor* Find(std::string_view name, StateKind kind) const;
};

// Text with a checksum of its own. Numbers keep their exact value.
std::string ManifestToJson(const Manifest& manifest);
// Checks the checksum, every field's type and range, unknown fields, and ValidateManifest. `source` names the text in
// errors.
absl::StatusOr<Manifest> ManifestFromJson(std::string_view text, const std::string& source);

// InvalidArgument naming the tensor, file or field, unless: every tensor's shards give each element exactly once and
// lie inside files that the manifest lists; aliases lead to a tensor of the same shape, type and kind; the lineage ends
// with the manifest's epoch.
absl::Status ValidateManifest(const Manifest& manifest);

// True when a checkpoint of (epoch, step) belongs to the history of the attempt whose lineage this is: it was written
// by that attempt, or by one that it descends from, at or before the step at which the next one forked off.
bool InLineage(const std::vector<LineageEntry>& lineage, int64_t epoch, int64_t step);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_MANIFEST_H_
