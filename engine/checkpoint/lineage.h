// Lineage entries of the API as those of a manifest. Thread-safe.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_LINEAGE_H_
#define SLIPWAY_ENGINE_CHECKPOINT_LINEAGE_H_

#include <vector>

#include "engine/format/manifest.h"
#include "slipway/v1/job.pb.h"

namespace slipway::engine::checkpoint {

inline std::vector<format::LineageEntry> ToFormat(const std::vector<v1::LineageEntry>& lineage) {
  std::vector<format::LineageEntry> entries;
  for (const v1::LineageEntry& entry : lineage) {
    format::LineageEntry converted;
    converted.epoch = entry.epoch();
    if (entry.from_epoch() > 0) converted.forked_from = {entry.from_epoch(), entry.from_step()};
    entries.push_back(converted);
  }
  return entries;
}

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_LINEAGE_H_
