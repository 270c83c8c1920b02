// THE table of a model's parameters. Initialisation, loading, saving, gradient reduction, the norm, optimizer groups
// and memory estimates read only this table; a test asserts that the modules built from an architecture equal it.
//
//   for (const ParamSpec& spec : BuildParamTable(arch)) {
//     SLIPWAY_ASSIGN_OR_RETURN(ShardRange rows, LocalRange(spec, 0, {.rank = 1, .size = 2}));
//     ... rows.begin, rows.count of the global tensor lie on tensor-parallel rank 1
//
// Plain data and pure functions; thread-safe.
#ifndef SLIPWAY_ENGINE_ARCH_PARAM_SPEC_H_
#define SLIPWAY_ENGINE_ARCH_PARAM_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::arch {

// The part of the model that a pipeline stage is made of.
struct Piece {
  enum class Kind : uint8_t { kEmbedding, kLayer, kHead };
  Kind kind = Kind::kEmbedding;
  int layer = 0;  // for kLayer, from 0

  friend bool operator==(const Piece&, const Piece&) = default;
};

// Logical tensors that one operation multiplies together lie next to each other in memory: q|k|v, gate|up. A group with
// one member is named after it.
struct FuseGroup {
  std::string name;  // "layers.3.attention.qkv", "layers.3.attention.qkv_bias", "layers.3.mlp.gate_up"
  int index = 0;     // place of this tensor in the group
  int count = 1;     // members of the group

  friend bool operator==(const FuseGroup&, const FuseGroup&) = default;
};

struct Init {
  enum class Kind : uint8_t { kNormal, kOnes, kZeros };
  Kind kind = Kind::kNormal;
  double std = 0;  // for kNormal

  friend bool operator==(const Init&, const Init&) = default;
};

// One expert's tensor is a parameter of its own, as in Hugging Face's files; those of one layer are a fuse group.
struct ExpertPlace {
  int64_t index = 0;  // of the layer's experts
  int64_t count = 1;  // how many the layer has

  friend bool operator==(const ExpertPlace&, const ExpertPlace&) = default;
};

struct ParamSpec {
  std::string name;            // Hugging Face's: "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // of the whole tensor, without padding of the vocabulary
  Piece piece;

  // Tensor parallelism cuts this dimension (0: column parallel, 1: row parallel); empty: every rank holds all of it.
  // An expert's is cut over the ranks of expert tensor parallelism.
  std::optional<int> tp_shard_dim;
  // The cut falls between units of this many rows or columns: a head for q, k, v and o, else 1.
  int64_t tp_unit = 1;
  // With more ranks than units, neighbouring ranks share one (key/value heads); without it such a cut is an error.
  bool tp_replicate_units = false;
  // The cut dimension is the vocabulary: it is padded for the cut, and only there.
  bool vocabulary = false;

  // Lives on the expert view of the mesh: on the ranks of its expert-parallel coordinate alone.
  std::optional<ExpertPlace> expert;
  // Axes besides dp and cp over which the gradients of its copies are partial sums, at any layout: tp for the q and k
  // norms, whose ranks see only their own heads.
  std::vector<topology::Axis> grad_sum_axes;
  // Axes that come on top when sequence parallelism is on: tp for the norms, whose ranks see only their own tokens.
  std::vector<topology::Axis> sequence_parallel_grad_sum_axes;

  bool weight_decay = true;  // false for 1-D parameters
  bool trainable = true;
  // Above 0: no loss trains it. What takes the place of its gradient counts load, and a step moves it by this against
  // the sign of that. It is kept in fp32 and no norm counts it. (The experts' bias.)
  double sign_update_rate = 0;
  // The name of the tensor that this is another use of. Such a parameter is not counted and not stored; its gradient is
  // added to that tensor's, across stages through the embedding group.
  std::optional<std::string> tied_to;
  FuseGroup fuse_group;
  Init init;

  int64_t NumElements() const;

  friend bool operator==(const ParamSpec&, const ParamSpec&) = default;
};

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kFinalNormName[] = "model.norm.weight";
inline constexpr char kHeadName[] = "lm_head.weight";

// The parameters in canonical order: embedding, layers (attention before MLP, members of a fuse group side by side),
// final norm, output layer. A tied output layer is listed with tied_to set. Weights are drawn from N(0,
// init_method_std); those that write into the residual stream (o_proj, down_proj) from N(0, init_method_std / sqrt(2 *
// num_layers)), as in Megatron-LM. REQUIRES: Validate(arch) is empty.
std::vector<ParamSpec> BuildParamTable(const ModelArch& arch);

// A rank's place in the groups that cut the model's tensors, and the grain of the vocabulary's padding.
struct TpPlacement {
  int rank = 0;  // tensor parallel
  int size = 1;
  int64_t make_vocab_size_divisible_by = 128;
  int etp_rank = 0;  // tensor parallel inside an expert
  int etp_size = 1;
  int ep_rank = 0;  // expert parallel
  int ep_size = 1;
};

// Of the rank with these coordinates.
TpPlacement PlacementOf(const topology::MeshSizes& sizes, const topology::Coordinates& at,
                        int64_t make_vocab_size_divisible_by);

// Whether the rank has the parameter at all: expert-parallel rank r of n holds experts [r*E/n, (r+1)*E/n), and every
// rank the parameters that are no expert's. InvalidArgument naming both numbers when the experts do not divide.
absl::StatusOr<bool> HoldsExpert(const ParamSpec& spec, const TpPlacement& tp);

// The smallest multiple of make_vocab_size_divisible_by * tp_size that holds the vocabulary.
int64_t PaddedVocabSize(int64_t vocab_size, int64_t make_vocab_size_divisible_by, int tp_size);

// Part of one dimension of the global tensor. The local extent is count + padding; padding stands at the end.
struct ShardRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t padding = 0;

  int64_t Extent() const { return count + padding; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// What a rank holds of dimension `dim` of the global tensor.
//  - A dimension that is not cut: all of it.
//  - A cut dimension of U = shape[dim] / tp_unit units: rank r of n holds units [r*U/n, (r+1)*U/n). An expert's is cut
//    by the rank's place in expert tensor parallelism.
//  - Key/value heads with n > U: rank r holds the one unit r*U/n (integer division), so n/U neighbours share it, the
//  same
//    unit that their query heads read.
//  - The vocabulary: rank r holds rows [r*P/n, (r+1)*P/n) of the padded P rows; rows past the real vocabulary are
//  padding
//    (a rank at the end may hold padding only).
// InvalidArgument naming the parameter and both numbers when the units do not divide; OutOfRange for a bad dim or rank.
absl::StatusOr<ShardRange> LocalRange(const ParamSpec& spec, int dim, const TpPlacement& tp);

// The local shape, padding included. Errors as LocalRange.
absl::StatusOr<std::vector<int64_t>> LocalShape(const ParamSpec& spec, const TpPlacement& tp);

// The number of neighbouring ranks that hold the same shard: tp_size for a parameter that is not cut, n/U for shared
// key/value heads, else 1 (also for an expert's, whatever tp_size is). Counted once in the gradient norm and stored
// once. REQUIRES: LocalRange is OK.
int TpReplicas(const ParamSpec& spec, int tp_size);

// The number of neighbouring tensor-parallel ranks over which the gradient must be summed (1: none): the sharers of a
// key/value head, all ranks for q/k norms, all ranks for the other norms under sequence parallelism. With g the result,
// rank r sums with the ranks of [r - r % g, r - r % g + g). REQUIRES: LocalRange is OK.
int TpGradSumRanks(const ParamSpec& spec, int tp_size, bool sequence_parallel);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_PARAM_SPEC_H_
