// Which layouts a model and its batch sizes allow: the rules of Megatron-LM's arguments.py and parallel_state.py, each
// answered with both numbers. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_TOPOLOGY_MESH_VALIDITY_H_
#define SLIPWAY_ENGINE_TOPOLOGY_MESH_VALIDITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/fault.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::topology {

// What the rules must know of a job. A field that is 0 or unset is unknown, and rules that need it are passed over.
struct MeshFacts {
  std::optional<int64_t> world_size;  // slots that the job may take
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;
  int64_t max_position_embeddings = 0;
  std::optional<int64_t> num_experts;  // 0: a dense model
  int64_t moe_ffn_hidden_size = 0;
  int64_t seq_length = 0;
  int64_t micro_batch_size = 0;
  int64_t global_batch_size = 0;
  bool sequence_parallel = false;
  int virtual_pipeline_size = 1;               // model chunks on each pipeline rank
  std::string pipeline_layout;                 // pipeline_layout.h; empty: layers are dealt evenly
  int microbatch_group_size_per_vp_stage = 0;  // 0: the pipeline size
};

// Every fault of the layout, with paths of TrainingSpec ("parallelism.tensor_model_parallel_size"). Empty when valid.
std::vector<Fault> ValidateMesh(const MeshSizes& sizes, const MeshFacts& facts,
                                std::string_view order = kDefaultRankOrder);

}  // namespace slipway::engine::topology

#endif  // SLIPWAY_ENGINE_TOPOLOGY_MESH_VALIDITY_H_
