#include "engine/arch/traffic_estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/status_macros.h"
#include "engine/arch/param_spec.h"
#include "engine/topology/pipeline_partition.h"

namespace slipway::engine::arch {
namespace {

using topology::GroupKind;

class Estimator {
 public:
  Estimator(const ModelArch& arch, const MemoryOptions& options, const topology::Mesh& mesh,
            const TrafficOptions& traffic, const topology::PipelinePartition& partition)
      : arch_(arch),
        options_(options),
        mesh_(mesh),
        gpus_per_node_(traffic.gpus_per_node),
        context_comm_(traffic.context_comm),
        partition_(partition),
        micro_batches_(options.num_microbatches) {
    tokens_ = static_cast<double>(options.micro_batch_size) * static_cast<double>(options.seq_length) /
              mesh.sizes().cp;
  }

  absl::StatusOr<std::vector<Traffic>> Estimate() {
    FindBusiestRank();
    AddTensorParallel();
    AddContextParallel();
    AddExperts();
    AddPipeline();
    SLIPWAY_RETURN_IF_ERROR(AddDataParallel());
    return std::move(traffic_);
  }

 private:
  // [tokens of one rank, hidden] in the compute type.
  double Activation() const { return tokens_ * static_cast<double>(arch_.hidden_size) * options_.bytes.activation; }

  // `elements` of the whole tensor in bytes, `factor` (n - 1) / n for a gather or scatter and twice that for a sum.
  void AddRing(const std::string& operation, GroupKind group, const std::string& what, int64_t operations,
               double whole_bytes) {
    const int size = mesh_.GroupSize(group);
    if (size == 1 || operations == 0) return;
    const double share = static_cast<double>(size - 1) / size * (operation == "all_reduce" ? 2 : 1);
    const double bytes = static_cast<double>(operations) * whole_bytes * share;
    traffic_.push_back({.operation = operation,
                        .group = group,
                        .what = what,
                        .group_size = size,
                        .operations = operations,
                        .bytes = bytes,
                        .node_bytes = bytes * NeighboursOnOtherNodes(mesh_.Groups(group), gpus_per_node_, true)});
  }

  // The pipeline rank with most layers, and of those with most of the model's ends.
  void FindBusiestRank() {
    for (int rank = 0; rank < partition_.pp; ++rank) {
      int64_t layers = 0, ends = 0, with_experts = 0;
      for (const topology::PipelineStage& stage : partition_.OfRank(rank)) {
        layers += stage.num_layers;
        for (int layer = stage.first_layer; arch_.moe && layer < stage.first_layer + stage.num_layers; ++layer) {
          with_experts += arch_.moe->HasExperts(layer) ? 1 : 0;
        }
        ends += (stage.has_embedding ? 1 : 0) + (stage.has_head ? 1 : 0);
      }
      if (layers > layers_ || (layers == layers_ && ends > ends_)) {
        layers_ = layers;
        ends_ = ends;
        moe_layers_ = with_experts;
      }
    }
  }

  // Each layer enters two tensor-parallel blocks and leaves them, one where it has experts; so does the head once, and
  // the embedding is left once.
  void AddTensorParallel() {
    const int64_t blocks = 2 * layers_ - moe_layers_;
    const int64_t forwards = options_.recompute == Recompute::kFull ? 2 : 1;
    if (!options_.sequence_parallel) {
      // Forward sums on leaving a block, backward on entering it.
      AddRing("all_reduce", GroupKind::kTp, "activations", micro_batches_ * (blocks * (forwards + 1) + ends_),
              Activation());
      return;
    }
    // Entering gathers, leaving reduces; the other way round backwards, where the blocks gather their input once more
    // for the weights' gradient.
    AddRing("all_gather", GroupKind::kTp, "activations", micro_batches_ * (blocks * (forwards + 2) + 2 * ends_),
            Activation());
    AddRing("reduce_scatter", GroupKind::kTp, "activations", micro_batches_ * (blocks * (forwards + 1) + ends_),
            Activation());
  }

  // Keys and values of a rank's tokens, or with a2a all that goes into and comes out of attention (engine/nn/
  // context_attention.h).
  void AddContextParallel() {
    const int cp = mesh_.sizes().cp, tp = mesh_.sizes().tp;
    if (cp == 1 || layers_ == 0) return;
    const double groups = std::max(static_cast<double>(arch_.num_query_groups) / tp, 1.0);
    const double block = tokens_ * 2 * groups * static_cast<double>(arch_.kv_channels) * options_.bytes.activation;
    const double gradients = block / options_.bytes.activation * 4;  // they are summed in fp32
    const int64_t forwards = options_.recompute == Recompute::kFull ? 2 : 1;
    const int64_t calls = micro_batches_ * layers_;
    if (context_comm_ == "a2a") {
      const double all = 2 * tokens_ * static_cast<double>(arch_.QueryRows()) / tp * options_.bytes.activation + block;
      AddContext("all_to_all", "queries, keys, values and outputs", calls * 2 * (forwards + 1),
                 static_cast<double>(calls * (forwards + 1)) * all * (cp - 1) / cp);
    } else if (context_comm_ == "all_gather") {
      AddContext("all_gather", "keys and values", calls * (forwards + 1),
                 static_cast<double>(calls * (forwards + 1)) * block * (cp - 1));
      AddContext("reduce_scatter", "gradients of keys and values", calls,
                 static_cast<double>(calls) * gradients * (cp - 1));
    } else {
      const int64_t shifts = (forwards + 1) * (cp - 1);
      AddContext("all_to_all", "keys, values and their gradients around the ring", calls * (shifts + cp),
                 static_cast<double>(calls) * (static_cast<double>(shifts) * block + cp * gradients));
    }
  }

  void AddContext(const std::string& operation, const std::string& what, int64_t operations, double bytes) {
    traffic_.push_back(
        {.operation = operation,
         .group = GroupKind::kCp,
         .what = what,
         .group_size = mesh_.sizes().cp,
         .operations = operations,
         .bytes = bytes,
         .node_bytes = bytes * NeighboursOnOtherNodes(mesh_.Groups(GroupKind::kCp), gpus_per_node_, true)});
  }

  // Tokens to their experts and results back, and the same for the gradients; tokens spread evenly.
  void AddExperts() {
    if (moe_layers_ == 0) return;
    const int64_t passes = micro_batches_ * moe_layers_ * ((options_.recompute == Recompute::kFull ? 2 : 1) + 1);
    const double tokens = Activation() / mesh_.sizes().tp;
    if (arch_.moe->dispatcher == Dispatcher::kAllToAll) {
      AddRing("all_to_all", GroupKind::kEtpEp, "tokens of experts", 2 * passes,
              tokens * static_cast<double>(arch_.moe->topk) * mesh_.sizes().etp);
      return;
    }
    const double of_all = tokens * mesh_.GroupSize(GroupKind::kEtpEp);
    AddRing("all_gather", GroupKind::kEtpEp, "tokens of experts", passes, of_all);
    AddRing("reduce_scatter", GroupKind::kEtpEp, "tokens of experts", passes, of_all);
  }

  // Every stage but the last sends its activations on, and every stage but the first its gradients back.
  void AddPipeline() {
    const int pp = mesh_.sizes().pp;
    if (pp == 1) return;
    const int vpp = partition_.vpp;
    const double message = Activation() / (options_.sequence_parallel ? mesh_.sizes().tp : 1);
    for (const bool forward : {true, false}) {
      const int64_t operations = micro_batches_ * vpp;
      const double bytes = static_cast<double>(operations) * message;
      traffic_.push_back(
          {.operation = "send",
           .group = GroupKind::kPp,
           .what = forward ? "activations" : "gradients of activations",
           .group_size = pp,
           .operations = operations,
           .bytes = bytes,
           .node_bytes = bytes * NeighboursOnOtherNodes(mesh_.Groups(GroupKind::kPp), gpus_per_node_, vpp > 1)});
    }
  }

  absl::Status AddDataParallel() {
    int64_t dense = 0, expert = 0;
    for (int rank = 0; rank < mesh_.sizes().pp; ++rank) {
      SLIPWAY_ASSIGN_OR_RETURN(const MemoryEstimate estimate, EstimateMemory(arch_, options_, rank));
      dense = std::max(dense, estimate.parameters - estimate.expert_parameters);
      expert = std::max(expert, estimate.expert_parameters);
    }
    const double gradient = options_.bytes.gradient;
    // Sharded gradients are reduced in each micro-batch, sharded weights gathered in each forward and backward.
    const int64_t reductions = ShardsGradients(options_.sharding) ? micro_batches_ : 1;
    const int64_t gathers = ShardsParameters(options_.sharding) ? 2 * micro_batches_ : 1;
    for (const auto& [group, elements] : {std::pair{GroupKind::kDpCp, dense}, std::pair{GroupKind::kEdp, expert}}) {
      if (elements == 0) continue;
      const auto parameters = static_cast<double>(elements);
      if (ShardsOptimizer(options_.sharding)) {
        AddRing("reduce_scatter", group, "gradients", reductions, parameters * gradient);
        AddRing("all_gather", group, "weights", gathers, parameters * options_.bytes.weight);
      } else {
        AddRing("all_reduce", group, "gradients", 1, parameters * gradient);
      }
    }
    if (arch_.untie_embeddings_and_output_weights) return absl::OkStatus();
    const int64_t rows =
        PaddedVocabSize(arch_.vocab_size, options_.make_vocab_size_divisible_by, mesh_.sizes().tp) / mesh_.sizes().tp;
    AddRing("all_reduce", GroupKind::kEmbedding, "gradient of the tied embedding", 1,
            static_cast<double>(rows * arch_.hidden_size) * gradient);
    return absl::OkStatus();
  }

  const ModelArch& arch_;
  const MemoryOptions& options_;
  const topology::Mesh& mesh_;
  const int gpus_per_node_;
  const std::string context_comm_;
  const topology::PipelinePartition& partition_;
  const int64_t micro_batches_;
  double tokens_ = 0;
  int64_t layers_ = 0;
  int64_t ends_ = 0;
  int64_t moe_layers_ = 0;  // of layers_
  std::vector<Traffic> traffic_;
};

}  // namespace

absl::StatusOr<std::vector<Traffic>> EstimateTraffic(const ModelArch& arch, const MemoryOptions& memory,
                                                     const topology::Mesh& mesh, const TrafficOptions& options) {
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition, PartitionFor(arch, memory));
  return Estimator(arch, memory, mesh, options, partition).Estimate();
}

int NeighboursOnOtherNodes(const std::vector<std::vector<int>>& groups, int gpus_per_node, bool ring) {
  std::map<int, int> leaving;  // by node
  int most = 0;
  for (const std::vector<int>& group : groups) {
    for (size_t i = 0; i + (ring ? 0 : 1) < group.size() && group.size() > 1; ++i) {
      const int node = group[i] / gpus_per_node;
      if (group[(i + 1) % group.size()] / gpus_per_node != node) most = std::max(most, ++leaving[node]);
    }
  }
  return most;
}

}  // namespace slipway::engine::arch
