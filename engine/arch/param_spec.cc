#include "engine/arch/param_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace slipway::engine::arch {
namespace {

using topology::Axis;

// Fills in what a family of parameters has in common.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelArch& arch)
      : arch_(arch),
        normal_{Init::Kind::kNormal, arch.init_method_std},
        residual_{Init::Kind::kNormal, arch.init_method_std / std::sqrt(2.0 * static_cast<double>(arch.num_layers))} {}

  std::vector<ParamSpec> Build() {
    ParamSpec& embedding =
        Add({Piece::Kind::kEmbedding}, kEmbeddingName, {arch_.vocab_size, arch_.hidden_size}, normal_, {"embedding"});
    embedding.tp_shard_dim = 0;
    embedding.vocabulary = true;
    for (int64_t layer = 0; layer < arch_.num_layers; ++layer) AddLayer(static_cast<int>(layer));
    AddNorm({Piece::Kind::kHead}, kFinalNormName, arch_.hidden_size, "final_norm");
    ParamSpec& head =
        Add({Piece::Kind::kHead}, kHeadName, {arch_.vocab_size, arch_.hidden_size}, normal_, {"output_layer"});
    head.tp_shard_dim = 0;
    head.vocabulary = true;
    if (!arch_.untie_embeddings_and_output_weights) head.tied_to = kEmbeddingName;
    return std::move(table_);
  }

 private:
  ParamSpec& Add(Piece piece, std::string name, std::vector<int64_t> shape, Init init, FuseGroup group) {
    ParamSpec& spec = table_.emplace_back();
    spec.name = std::move(name);
    spec.weight_decay = shape.size() > 1;
    spec.shape = std::move(shape);
    spec.piece = piece;
    spec.init = init;
    spec.fuse_group = std::move(group);
    return spec;
  }

  void AddNorm(Piece piece, std::string name, int64_t size, std::string group) {
    Add(piece, std::move(name), {size}, {Init::Kind::kOnes}, {std::move(group)}).sequence_parallel_grad_sum_axes = {
        Axis::kTp};
  }

  void AddHeadNorm(Piece piece, std::string name, std::string group) {
    Add(piece, std::move(name), {arch_.kv_channels}, {Init::Kind::kOnes}, {std::move(group)}).grad_sum_axes = {
        Axis::kTp};
  }

  void AddLayer(int layer) {
    const Piece piece{Piece::Kind::kLayer, layer};
    const std::string hf = absl::StrCat("model.layers.", layer, ".");
    const std::string own = absl::StrCat("layers.", layer, ".");
    AddNorm(piece, hf + "input_layernorm.weight", arch_.hidden_size, own + "input_norm");
    AddQkv(piece, hf + "self_attn.", own + "attention.");
    if (arch_.qk_layernorm) {
      AddHeadNorm(piece, hf + "self_attn.q_norm.weight", own + "attention.q_norm");
      AddHeadNorm(piece, hf + "self_attn.k_norm.weight", own + "attention.k_norm");
    }
    ParamSpec& output = Add(piece, hf + "self_attn.o_proj.weight", {arch_.hidden_size, arch_.QueryRows()}, residual_,
                            {own + "attention.output"});
    output.tp_shard_dim = 1;
    output.tp_unit = arch_.kv_channels;
    AddNorm(piece, hf + "post_attention_layernorm.weight", arch_.hidden_size, own + "post_attention_norm");
    if (arch_.moe.has_value() && arch_.moe->HasExperts(layer)) {
      AddMoe(piece, hf + "mlp.", own + "mlp.");
    } else {
      AddMlp(piece, hf + "mlp.", own + "mlp.", arch_.ffn_hidden_size);
    }
  }

  void AddMlp(Piece piece, const std::string& hf, const std::string& own, int64_t inner) {
    for (int i = 0; i < 2; ++i) {
      Add(piece, absl::StrCat(hf, i == 0 ? "gate" : "up", "_proj.weight"), {inner, arch_.hidden_size}, normal_,
          {own + "gate_up", i, 2})
          .tp_shard_dim = 0;
    }
    Add(piece, hf + "down_proj.weight", {arch_.hidden_size, inner}, residual_, {own + "down"}).tp_shard_dim = 1;
  }

  // Every rank of a tensor-parallel group routes its own tokens (sequence parallelism), with the same router.
  ParamSpec& AddRouting(Piece piece, std::string name, std::vector<int64_t> shape, Init init, std::string group) {
    ParamSpec& spec = Add(piece, std::move(name), std::move(shape), init, {std::move(group)});
    spec.sequence_parallel_grad_sum_axes = {Axis::kTp};
    return spec;
  }

  void AddMoe(Piece piece, const std::string& hf, const std::string& own) {
    const MoeArch& moe = *arch_.moe;
    AddRouting(piece, hf + "gate.weight", {moe.num_experts, arch_.hidden_size}, normal_, own + "router");
    if (moe.expert_bias) {
      ParamSpec& bias = AddRouting(piece, hf + "gate.e_score_correction_bias", {moe.num_experts}, {Init::Kind::kZeros},
                                   own + "expert_bias");
      bias.sign_update_rate = moe.bias_update_rate;
    }
    const auto name = [&](int64_t expert, const char* projection) {
      return absl::StrCat(hf, "experts.", expert, ".", projection, "_proj.weight");
    };
    const auto experts = static_cast<int>(moe.num_experts);
    for (int e = 0; e < experts; ++e) {
      for (int i = 0; i < 2; ++i) {
        ParamSpec& spec = Add(piece, name(e, i == 0 ? "gate" : "up"), {moe.ffn_hidden_size, arch_.hidden_size}, normal_,
                              {own + "experts.gate_up", 2 * e + i, 2 * experts});
        spec.tp_shard_dim = 0;
        spec.expert = {e, experts};
      }
    }
    for (int e = 0; e < experts; ++e) {
      ParamSpec& spec = Add(piece, name(e, "down"), {arch_.hidden_size, moe.ffn_hidden_size}, residual_,
                            {own + "experts.down", e, experts});
      spec.tp_shard_dim = 1;
      spec.expert = {e, experts};
    }
    if (moe.shared_expert_intermediate_size == 0) return;
    AddMlp(piece, hf + "shared_expert.", own + "shared_expert.", moe.shared_expert_intermediate_size);
    if (moe.shared_expert_gate) {
      AddRouting(piece, hf + "shared_expert_gate.weight", {1, arch_.hidden_size}, normal_, own + "shared_expert_gate");
    }
  }

  void AddQkv(Piece piece, const std::string& hf, const std::string& own) {
    for (const bool bias : {false, true}) {
      if (bias && !arch_.add_qkv_bias) continue;
      for (int i = 0; i < 3; ++i) {
        const int64_t rows = i == 0 ? arch_.QueryRows() : arch_.KeyRows();
        ParamSpec& spec = Add(piece, absl::StrCat(hf, std::string(1, "qkv"[i]), "_proj.", bias ? "bias" : "weight"),
                              bias ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, arch_.hidden_size},
                              bias ? Init{Init::Kind::kZeros} : normal_, {own + (bias ? "qkv_bias" : "qkv"), i, 3});
        spec.tp_shard_dim = 0;
        spec.tp_unit = arch_.kv_channels;
        spec.tp_replicate_units = i > 0;
      }
    }
  }

  const ModelArch& arch_;
  const Init normal_;
  const Init residual_;
  std::vector<ParamSpec> table_;
};

bool SumsOverTp(const std::vector<Axis>& axes) { return std::find(axes.begin(), axes.end(), Axis::kTp) != axes.end(); }

}  // namespace

int64_t ParamSpec::NumElements() const {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

TpPlacement PlacementOf(const topology::MeshSizes& sizes, const topology::Coordinates& at,
                        int64_t make_vocab_size_divisible_by) {
  return {.rank = at.tp,
          .size = sizes.tp,
          .make_vocab_size_divisible_by = make_vocab_size_divisible_by,
          .etp_rank = at.etp,
          .etp_size = sizes.etp,
          .ep_rank = at.ep,
          .ep_size = sizes.ep};
}

absl::StatusOr<bool> HoldsExpert(const ParamSpec& spec, const TpPlacement& tp) {
  if (!spec.expert.has_value()) return true;
  if (tp.ep_size < 1 || tp.ep_rank < 0 || tp.ep_rank >= tp.ep_size) {
    return absl::OutOfRangeError(absl::StrCat("expert-parallel rank ", tp.ep_rank, " of ", tp.ep_size));
  }
  if (spec.expert->count % tp.ep_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, ": ", spec.expert->count, " experts do not divide over ",
                                                   tp.ep_size, " expert-parallel ranks"));
  }
  return spec.expert->index / (spec.expert->count / tp.ep_size) == tp.ep_rank;
}

std::vector<ParamSpec> BuildParamTable(const ModelArch& arch) { return TableBuilder(arch).Build(); }

int64_t PaddedVocabSize(int64_t vocab_size, int64_t make_vocab_size_divisible_by, int tp_size) {
  const int64_t grain = make_vocab_size_divisible_by * tp_size;
  return (vocab_size + grain - 1) / grain * grain;
}

absl::StatusOr<ShardRange> LocalRange(const ParamSpec& spec, int dim, const TpPlacement& tp) {
  if (dim < 0 || dim >= static_cast<int>(spec.shape.size())) {
    return absl::OutOfRangeError(
        absl::StrCat(spec.name, " has ", spec.shape.size(), " dimensions; there is no dimension ", dim));
  }
  const int rank = spec.expert.has_value() ? tp.etp_rank : tp.rank;
  const int size = spec.expert.has_value() ? tp.etp_size : tp.size;
  if (size < 1 || rank < 0 || rank >= size || tp.make_vocab_size_divisible_by < 1) {
    return absl::OutOfRangeError(absl::StrCat("tensor-parallel rank ", rank, " of ", size, ", vocabulary divisible by ",
                                              tp.make_vocab_size_divisible_by));
  }
  const int64_t extent = spec.shape[dim];
  if (spec.tp_shard_dim != dim) return ShardRange{0, extent, 0};
  if (spec.vocabulary) {
    const int64_t local = PaddedVocabSize(extent, tp.make_vocab_size_divisible_by, size) / size;
    const int64_t begin = std::min(rank * local, extent);
    const int64_t count = std::min(local, extent - begin);
    return ShardRange{begin, count, local - count};
  }
  const int64_t units = extent / spec.tp_unit;
  if (units % size == 0) {
    const int64_t local = units / size * spec.tp_unit;
    return ShardRange{rank * local, local, 0};
  }
  if (spec.tp_replicate_units && size % units == 0) {
    return ShardRange{rank * units / size * spec.tp_unit, spec.tp_unit, 0};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(spec.name, ": dimension ", dim, " of ", extent, " is ", units,
                   spec.tp_unit > 1 ? " heads of " : " units of ", spec.tp_unit, ", which do not divide over ", size,
                   spec.expert.has_value() ? " ranks of expert tensor parallelism" : " tensor-parallel ranks"));
}

absl::StatusOr<std::vector<int64_t>> LocalShape(const ParamSpec& spec, const TpPlacement& tp) {
  std::vector<int64_t> shape;
  for (int dim = 0; dim < static_cast<int>(spec.shape.size()); ++dim) {
    const absl::StatusOr<ShardRange> range = LocalRange(spec, dim, tp);
    if (!range.ok()) return range.status();
    shape.push_back(range->Extent());
  }
  return shape;
}

int TpReplicas(const ParamSpec& spec, int tp_size) {
  if (spec.expert.has_value()) return 1;
  if (!spec.tp_shard_dim.has_value()) return tp_size;
  if (!spec.tp_replicate_units) return 1;
  const int64_t units = spec.shape[*spec.tp_shard_dim] / spec.tp_unit;
  return tp_size > units ? static_cast<int>(tp_size / units) : 1;
}

int TpGradSumRanks(const ParamSpec& spec, int tp_size, bool sequence_parallel) {
  if (spec.expert.has_value()) return 1;
  if (spec.tp_shard_dim.has_value()) return TpReplicas(spec, tp_size);
  const bool sums =
      SumsOverTp(spec.grad_sum_axes) || (sequence_parallel && SumsOverTp(spec.sequence_parallel_grad_sum_axes));
  return sums ? tp_size : 1;
}

}  // namespace slipway::engine::arch
