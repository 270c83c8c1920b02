// What a model costs: parameters, floating-point operations, memory of a rank. Counts are exact; memory is an estimate
// that leaves out allocator slack and communication buffers. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_ARCH_MODEL_ESTIMATE_H_
#define SLIPWAY_ENGINE_ARCH_MODEL_ESTIMATE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/sharding.h"
#include "engine/topology/mesh.h"
#include "engine/topology/pipeline_partition.h"

namespace slipway::engine::arch {

// Distinct parameters: a tied output layer is not counted twice, padding is not counted. REQUIRES: Validate(arch) is
// empty.
int64_t ParameterCount(const ModelArch& arch);

// Floating-point operations of one training step (forward and backward: three times the forward's multiply-adds, two
// operations each), by where they fall. Megatron-LM's formula (megatron/training/training.py), with half of the
// attention square because of the causal mask, and the output layer over `padded_vocab_size` rows.
struct TrainingFlops {
  double attention_projections = 0;
  double attention_scores = 0;
  double mlp = 0;  // of the experts only those that a token uses, with their router
  double logits = 0;

  double Total() const { return attention_projections + attention_scores + mlp + logits; }
};

// `num_tokens` real tokens in documents whose squared lengths add up to `sum_squared_lengths`.
TrainingFlops FlopsOfTokens(const ModelArch& arch, double num_tokens, double sum_squared_lengths,
                            int64_t padded_vocab_size);
// `batch` full sequences of `seq_length` tokens.
TrainingFlops FlopsOfBatch(const ModelArch& arch, int64_t batch, int64_t seq_length, int64_t padded_vocab_size);
// Of one token in a full sequence.
double FlopsPerToken(const ModelArch& arch, int64_t seq_length, int64_t padded_vocab_size);

// Bytes that one parameter takes in each role.
struct StateBytes {
  double weight = 4;    // the copy that computes
  double gradient = 4;  // accumulated
  double master = 0;    // 0 when the computing copy is the master
  double moments = 8;   // both of Adam
  double activation = 4;

  // precision.name = "fp32".
  static StateBytes Fp32() { return {}; }
  // precision.name = "bf16_mixed": fp32 main gradients, master weights and moments.
  static StateBytes Bf16Mixed() { return {.weight = 2, .gradient = 4, .master = 4, .moments = 8, .activation = 2}; }
};

enum class Recompute : uint8_t { kNone, kFull };

struct MemoryOptions {
  topology::MeshSizes mesh;
  // Which layers each stage holds; unset: dealt evenly, one chunk a rank.
  std::optional<topology::PipelinePartition> partition = std::nullopt;
  StateBytes bytes;
  int64_t seq_length = 0;
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;
  int microbatch_group_size_per_vp_stage = 0;  // 0: the pipeline size
  int64_t make_vocab_size_divisible_by = 128;
  int64_t logits_chunk_elements = int64_t{1} << 25;  // the loss makes at most so many logits at a time
  bool sequence_parallel = false;
  Sharding sharding = Sharding::kOptim;  // over dp x cp, of experts over edp
  bool fused_attention = true;           // no [seq, seq] scores are kept
  Recompute recompute = Recompute::kNone;
};

// Bytes on one rank.
struct MemoryEstimate {
  int64_t parameters = 0;         // elements that the rank holds, padding included
  int64_t expert_parameters = 0;  // those of them that are experts'
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double logits = 0;  // fp32 logits of one chunk and their gradient, on the last stage

  double Total() const { return weights + gradients + optimizer + activations + logits; }
};

// The partition of the options, or the even one. InvalidArgument when the layers do not go over the stages.
absl::StatusOr<topology::PipelinePartition> PartitionFor(const ModelArch& arch, const MemoryOptions& options);

// InvalidArgument when the model does not divide over the mesh. REQUIRES: Validate(arch) is empty.
absl::StatusOr<MemoryEstimate> EstimateMemory(const ModelArch& arch, const MemoryOptions& options, int pp_rank);
// The pipeline rank that needs most.
absl::StatusOr<MemoryEstimate> EstimatePeakMemory(const ModelArch& arch, const MemoryOptions& options);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_MODEL_ESTIMATE_H_
