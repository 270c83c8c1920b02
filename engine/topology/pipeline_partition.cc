#include "engine/topology/pipeline_partition.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "engine/topology/pipeline_layout.h"

namespace slipway::engine::topology {
namespace {

// `layers` by stage in model order; a multiple of pp of them.
PipelinePartition MakePartition(int pp, const std::vector<int>& layers) {
  const int stages = static_cast<int>(layers.size());
  PipelinePartition partition{.pp = pp, .vpp = stages / pp};
  int next = 0;
  for (int s = 0; s < stages; ++s) {
    partition.stages.push_back({.pp_rank = s % pp,
                                .chunk = s / pp,
                                .first_layer = next,
                                .num_layers = layers[s],
                                .has_embedding = s == 0,
                                .has_head = s == stages - 1});
    next += layers[s];
  }
  return partition;
}

}  // namespace

std::vector<PipelineStage> PipelinePartition::OfRank(int pp_rank) const {
  assert(pp_rank >= 0 && pp_rank < pp);
  std::vector<PipelineStage> own;
  for (int chunk = 0; chunk < vpp; ++chunk) own.push_back(stages[chunk * pp + pp_rank]);
  return own;
}

const PipelineStage& PipelinePartition::OfLayer(int layer) const {
  const auto after = std::upper_bound(stages.begin(), stages.end(), layer,
                                      [](int value, const PipelineStage& stage) { return value < stage.first_layer; });
  assert(after != stages.begin());
  const PipelineStage& stage = *std::prev(after);
  assert(layer < stage.first_layer + stage.num_layers);
  return stage;
}

int PipelinePartition::MaxLayersOfRank() const {
  int most = 0;
  for (int rank = 0; rank < pp; ++rank) {
    int layers = 0;
    for (const PipelineStage& stage : OfRank(rank)) layers += stage.num_layers;
    most = std::max(most, layers);
  }
  return most;
}

std::string PipelinePartition::Text() const {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < pp; ++rank) {
    ranks.push_back(absl::StrJoin(OfRank(rank), "+", [](std::string* out, const PipelineStage& stage) {
      absl::StrAppend(out, stage.num_layers);
    }));
  }
  return absl::StrCat("[", absl::StrJoin(ranks, ", "), "]");
}

absl::StatusOr<PipelinePartition> PartitionLayers(int num_layers, int pp, int vpp) {
  if (num_layers < 1 || pp < 1 || vpp < 1) {
    return absl::InvalidArgumentError(absl::StrCat("cannot partition ", num_layers, " layers over ", pp,
                                                   " pipeline ranks with ", vpp,
                                                   " chunks each; all must be at least 1"));
  }
  const int64_t num_stages = int64_t{pp} * vpp;
  if (num_layers < num_stages) {
    return absl::InvalidArgumentError(absl::StrCat(num_layers, " layers are fewer than the ", num_stages,
                                                   " pipeline stages (", pp, " ranks with ", vpp,
                                                   " chunks each); each stage needs a layer"));
  }
  std::vector<int> layers;
  for (int s = 0; s < num_stages; ++s) {
    layers.push_back(static_cast<int>(num_layers / num_stages) + (s < num_layers % num_stages ? 1 : 0));
  }
  return MakePartition(pp, layers);
}

absl::StatusOr<PipelinePartition> PartitionByLayout(int num_layers, int pp, std::string_view layout) {
  if (pp < 1) return absl::InvalidArgumentError(absl::StrCat("a pipeline of ", pp, " ranks; must be at least 1"));
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<int> layers, ParsePipelineLayout(layout));
  const int64_t total = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  if (total != num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", total, " layers (t), and the model has ", num_layers));
  }
  if (layers.size() % static_cast<size_t>(pp) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has ", layers.size(), " stages, which is not a multiple of the ",
                                                   pp, " pipeline ranks"));
  }
  return MakePartition(pp, layers);
}

}  // namespace slipway::engine::topology
