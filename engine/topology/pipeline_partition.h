// Which layers each pipeline stage holds. With V virtual stages a rank holds V chunks: stage s of the P*V stages, in
// model order, is chunk s / P of rank s % P (Megatron-LM's interleaving). Layers are dealt as evenly as possible, the
// first stages taking one more (7 layers on 2 stages are 4 and 3, 30 on 4 are 8, 8, 7 and 7), or as a layout string
// says. Thread-safe: pure functions and immutable data.
#ifndef SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_PARTITION_H_
#define SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_PARTITION_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::engine::topology {

struct PipelineStage {
  int pp_rank = 0;
  int chunk = 0;
  int first_layer = 0;
  int num_layers = 0;
  bool has_embedding = false;  // the first stage
  bool has_head = false;       // the last stage: final norm, output layer and loss

  friend bool operator==(const PipelineStage&, const PipelineStage&) = default;
};

struct PipelinePartition {
  int pp = 1;
  int vpp = 1;
  std::vector<PipelineStage> stages;  // in model order, pp * vpp of them

  // The chunks of a rank, chunk 0 first.
  std::vector<PipelineStage> OfRank(int pp_rank) const;
  // REQUIRES: 0 <= layer < the number of layers.
  const PipelineStage& OfLayer(int layer) const;
  // The largest number of layers that one rank holds.
  int MaxLayersOfRank() const;
  // "[4, 3]"; with virtual stages by rank and chunk: "[2+2, 2+1]".
  std::string Text() const;
};

// InvalidArgument with both numbers when a size is below 1 or there are fewer layers than stages.
absl::StatusOr<PipelinePartition> PartitionLayers(int num_layers, int pp, int vpp = 1);
// As a layout string says (pipeline_layout.h), whose stages make vpp = stages / pp; a stage may have no layer.
// InvalidArgument as ParsePipelineLayout, and with both numbers when the layers are not num_layers or the stages are no
// multiple of pp.
absl::StatusOr<PipelinePartition> PartitionByLayout(int num_layers, int pp, std::string_view layout);

}  // namespace slipway::engine::topology

#endif  // SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_PARTITION_H_
