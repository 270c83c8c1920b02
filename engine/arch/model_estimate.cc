#include "engine/arch/model_estimate.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "common/status_macros.h"
#include "engine/arch/param_spec.h"
#include "engine/topology/pipeline_partition.h"
#include "engine/topology/pipeline_schedule.h"

namespace slipway::engine::arch {
namespace {

using topology::PipelineStage;

bool HoldsPiece(const std::vector<PipelineStage>& stages, const Piece& piece) {
  return std::any_of(stages.begin(), stages.end(), [&](const PipelineStage& stage) {
    switch (piece.kind) {
      case Piece::Kind::kEmbedding:
        return stage.has_embedding;
      case Piece::Kind::kHead:
        return stage.has_head;
      case Piece::Kind::kLayer:
        return piece.layer >= stage.first_layer && piece.layer < stage.first_layer + stage.num_layers;
    }
    return false;
  });
}

// Elements that a rank holds of what is cut over the same ranks, padding included.
struct HeldParameters {
  int64_t total = 0;
  int64_t largest_piece = 0;  // what is gathered or reduced at a time
};
struct LocalElements {
  HeldParameters dense;
  HeldParameters expert;
};

absl::StatusOr<LocalElements> LocalParameters(const ModelArch& arch, const MemoryOptions& options,
                                              const std::vector<PipelineStage>& stages) {
  const TpPlacement placement = PlacementOf(options.mesh, {}, options.make_vocab_size_divisible_by);
  const bool has_embedding = HoldsPiece(stages, {Piece::Kind::kEmbedding});
  LocalElements local;
  std::map<std::tuple<bool, Piece::Kind, int>, int64_t> pieces;
  for (const ParamSpec& spec : BuildParamTable(arch)) {
    if (!HoldsPiece(stages, spec.piece)) continue;
    if (spec.tied_to.has_value() && has_embedding) continue;  // the same memory; a last stage has its own copy
    SLIPWAY_ASSIGN_OR_RETURN(const bool holds, HoldsExpert(spec, placement));
    if (!holds) continue;
    SLIPWAY_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, LocalShape(spec, placement));
    int64_t elements = 1;
    for (int64_t extent : shape) elements *= extent;
    HeldParameters& held = spec.expert.has_value() ? local.expert : local.dense;
    held.total += elements;
    int64_t& piece = pieces[{spec.expert.has_value(), spec.piece.kind, spec.piece.layer}];
    piece += elements;
    held.largest_piece = std::max(held.largest_piece, piece);
  }
  return local;
}

// Elements that the feed-forward part of a layer keeps for its backward, a token, beside its input: the mean over the
// layers with and without experts, which are taken to share the load evenly.
double FeedForwardActivations(const ModelArch& arch, const MemoryOptions& options) {
  // gate, up and their product.
  const auto block = [](int64_t inner, int ranks) { return 3 * static_cast<double>(inner) / ranks; };
  const double dense = block(arch.ffn_hidden_size, options.mesh.tp);
  if (!arch.moe.has_value()) return dense;
  const MoeArch& moe = *arch.moe;
  // Each copy of a token goes to the expert's ranks and comes back.
  const double copies = static_cast<double>(moe.topk) *
                        (2 * static_cast<double>(arch.hidden_size) * options.mesh.etp + block(moe.ffn_hidden_size, 1));
  const double experts = (copies + static_cast<double>(moe.num_experts)) / options.mesh.tp +
                         block(moe.shared_expert_intermediate_size, options.mesh.tp);
  const auto layers = static_cast<double>(arch.num_layers);
  const double share = static_cast<double>(moe.MoeLayers(arch.num_layers)) / layers;
  return share * experts + (1 - share) * dense;
}

// Elements that one layer keeps for its backward, a token.
double LayerActivations(const ModelArch& arch, const MemoryOptions& options) {
  const auto hidden = static_cast<double>(arch.hidden_size);
  const double tp = options.mesh.tp;
  const double replicated = options.sequence_parallel ? tp : 1;
  // Inputs of both norms and of the two projections after them.
  const double norms = 4 * hidden / replicated;
  // q, k, v; the attention's output, which is o_proj's input.
  const double attention = static_cast<double>(2 * arch.QueryRows() + 2 * arch.KeyRows()) / tp;
  const double mlp = FeedForwardActivations(arch, options);
  const double scores = options.fused_attention ? 0
                                                : 2 * static_cast<double>(arch.num_attention_heads) *
                                                      static_cast<double>(options.seq_length) / tp;
  return norms + attention + mlp + scores;
}

// Micro-batches that lead to the same peak as the step's, with the same rest after whole groups.
int64_t EnoughMicroBatches(int64_t num_microbatches, int64_t group) {
  return num_microbatches <= 4 * group ? num_microbatches : 3 * group + num_microbatches % group;
}

// The most layers of a rank whose activations wait for their backward at one time.
absl::StatusOr<double> LayersInFlight(const MemoryOptions& options, const topology::PipelinePartition& partition,
                                      int pp_rank) {
  const std::vector<PipelineStage> stages = partition.OfRank(pp_rank);
  const int group =
      options.microbatch_group_size_per_vp_stage == 0 ? partition.pp : options.microbatch_group_size_per_vp_stage;
  const int count = static_cast<int>(EnoughMicroBatches(options.num_microbatches, group));
  SLIPWAY_ASSIGN_OR_RETURN(
      const topology::PipelineSchedule schedule,
      partition.vpp == 1 ? topology::OneForwardOneBackward(partition.pp, count)
                         : topology::InterleavedOneForwardOneBackward(partition.pp, partition.vpp, count, group));
  int64_t now = 0, peak = 0;
  for (const topology::Pass& pass : schedule.ranks[pp_rank]) {
    now += (pass.kind == topology::PassKind::kForward ? 1 : -1) * int64_t{stages[pass.chunk].num_layers};
    peak = std::max(peak, now);
  }
  return static_cast<double>(peak);
}

double ActivationBytes(const ModelArch& arch, const MemoryOptions& options, double layers_in_flight) {
  const double tokens =
      static_cast<double>(options.micro_batch_size) * static_cast<double>(options.seq_length) / options.mesh.cp;
  const double layer = LayerActivations(arch, options);
  const double input = static_cast<double>(arch.hidden_size) / (options.sequence_parallel ? options.mesh.tp : 1);
  const double elements =
      options.recompute == Recompute::kFull ? layers_in_flight * input + layer : layers_in_flight * layer;
  return elements * tokens * options.bytes.activation;
}

}  // namespace

int64_t ParameterCount(const ModelArch& arch) {
  int64_t total = 0;
  for (const ParamSpec& spec : BuildParamTable(arch)) {
    if (!spec.tied_to.has_value()) total += spec.NumElements();
  }
  return total;
}

TrainingFlops FlopsOfTokens(const ModelArch& arch, double num_tokens, double sum_squared_lengths,
                            int64_t padded_vocab_size) {
  const auto hidden = static_cast<double>(arch.hidden_size);
  const auto query = static_cast<double>(arch.QueryRows());
  const auto key = static_cast<double>(arch.KeyRows());
  const auto layers = static_cast<double>(arch.num_layers);
  double inner = layers * static_cast<double>(arch.ffn_hidden_size);  // of all layers' blocks that a token passes
  double router = 0;
  if (arch.moe.has_value()) {
    const MoeArch& moe = *arch.moe;
    const auto moe_layers = static_cast<double>(moe.MoeLayers(arch.num_layers));
    inner = (layers - moe_layers) * static_cast<double>(arch.ffn_hidden_size) +
            moe_layers * static_cast<double>(moe.topk * moe.ffn_hidden_size + moe.shared_expert_intermediate_size);
    router = moe_layers * static_cast<double>(moe.num_experts);
  }
  // 6 = 2 operations a multiply-add, once forward and twice backward.
  return {.attention_projections = 6 * num_tokens * layers * (hidden * (query + 2 * key) + query * hidden),
          .attention_scores = 6 * sum_squared_lengths * layers * query * 0.5 * 2,
          .mlp = 6 * num_tokens * hidden * (inner * 3 + router),
          .logits = 6 * num_tokens * hidden * static_cast<double>(padded_vocab_size)};
}

TrainingFlops FlopsOfBatch(const ModelArch& arch, int64_t batch, int64_t seq_length, int64_t padded_vocab_size) {
  const auto rows = static_cast<double>(batch);
  const auto length = static_cast<double>(seq_length);
  return FlopsOfTokens(arch, rows * length, rows * length * length, padded_vocab_size);
}

double FlopsPerToken(const ModelArch& arch, int64_t seq_length, int64_t padded_vocab_size) {
  return FlopsOfTokens(arch, 1, static_cast<double>(seq_length), padded_vocab_size).Total();
}

absl::StatusOr<topology::PipelinePartition> PartitionFor(const ModelArch& arch, const MemoryOptions& options) {
  if (options.partition.has_value()) return *options.partition;
  return topology::PartitionLayers(static_cast<int>(arch.num_layers), options.mesh.pp);
}

absl::StatusOr<MemoryEstimate> EstimateMemory(const ModelArch& arch, const MemoryOptions& options, int pp_rank) {
  const topology::MeshSizes& mesh = options.mesh;
  SLIPWAY_ASSIGN_OR_RETURN(const topology::Mesh layout, topology::Mesh::Create(mesh));
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition, PartitionFor(arch, options));
  if (pp_rank < 0 || pp_rank >= mesh.pp) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline rank ", pp_rank, " of ", mesh.pp));
  }
  MemoryEstimate estimate;
  SLIPWAY_ASSIGN_OR_RETURN(const LocalElements local, LocalParameters(arch, options, partition.OfRank(pp_rank)));
  estimate.parameters = local.dense.total + local.expert.total;
  estimate.expert_parameters = local.expert.total;
  // Each kind is cut over the ranks that hold the same parameters. Of what is sharded two buckets are whole at a time.
  const auto add = [&](const HeldParameters& held, double ranks) {
    const auto parameters = static_cast<double>(held.total);
    const auto share = [&](bool sharded, double bytes) {
      if (!sharded || ranks == 1) return parameters * bytes;
      return (parameters / ranks + std::min(2 * static_cast<double>(held.largest_piece), parameters)) * bytes;
    };
    estimate.weights += share(ShardsParameters(options.sharding), options.bytes.weight);
    estimate.gradients += share(ShardsGradients(options.sharding), options.bytes.gradient);
    estimate.optimizer +=
        parameters * (options.bytes.master + options.bytes.moments) / (ShardsOptimizer(options.sharding) ? ranks : 1);
  };
  add(local.dense, static_cast<double>(mesh.dp) * mesh.cp);
  add(local.expert, static_cast<double>(layout.edp()));
  SLIPWAY_ASSIGN_OR_RETURN(const double layers_in_flight, LayersInFlight(options, partition, pp_rank));
  estimate.activations = ActivationBytes(arch, options, layers_in_flight);
  if (pp_rank == mesh.pp - 1) {
    const int64_t tokens = options.micro_batch_size * options.seq_length / mesh.cp;
    const int64_t vocab = PaddedVocabSize(arch.vocab_size, options.make_vocab_size_divisible_by, mesh.tp) / mesh.tp;
    const int64_t chunk = std::min(tokens, std::max<int64_t>(options.logits_chunk_elements / vocab, 1));
    estimate.logits = static_cast<double>(chunk * vocab) * (4 + options.bytes.activation);
  }
  return estimate;
}

absl::StatusOr<MemoryEstimate> EstimatePeakMemory(const ModelArch& arch, const MemoryOptions& options) {
  MemoryEstimate peak;
  for (int rank = 0; rank < std::max(options.mesh.pp, 1); ++rank) {
    SLIPWAY_ASSIGN_OR_RETURN(const MemoryEstimate estimate, EstimateMemory(arch, options, rank));
    if (rank == 0 || estimate.Total() > peak.Total()) peak = estimate;
  }
  return peak;
}

}  // namespace slipway::engine::arch
