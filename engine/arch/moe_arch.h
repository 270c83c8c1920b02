// The mixture-of-experts part of an architecture: which layers have experts, how a token finds its experts, and how
// they are trained to share the load. Names are Megatron-LM's (megatron/core/transformer/transformer_config.py).
// Plain data and pure functions; thread-safe.
#ifndef SLIPWAY_ENGINE_ARCH_MOE_ARCH_H_
#define SLIPWAY_ENGINE_ARCH_MOE_ARCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fault.h"

namespace slipway::engine::arch {

// What turns a router's logits into the weights of a token's experts.
enum class RouterScore : uint8_t {
  kSoftmax,
  kSigmoid  // each expert by itself; the chosen ones' scores are divided by their sum
};

// Over which tokens the load-balancing loss counts.
enum class LoadBalancing : uint8_t {
  kNone,
  kSequence,    // each sample by itself: the same on every layout
  kMicroBatch,  // Megatron's aux_loss: the rows of one micro-batch; depends on the micro-batch size
  kGlobalBatch  // the step's micro-batches so far, of all ranks; depends on the number of micro-batches
};

// Which tokens an expert that is full leaves out.
enum class DropPolicy : uint8_t { kProbs, kPosition };

// How tokens reach the ranks that hold their experts.
enum class Dispatcher : uint8_t { kAllToAll, kAllGather };

std::string_view RouterScoreName(RouterScore score);      // "softmax", "sigmoid"
std::string_view LoadBalancingName(LoadBalancing value);  // "none", "seq_aux_loss", "aux_loss", "global_aux_loss"
std::string_view DropPolicyName(DropPolicy policy);       // "probs", "position"
std::string_view DispatcherName(Dispatcher dispatcher);   // "alltoall", "allgather"
std::optional<RouterScore> RouterScoreFromName(std::string_view name);
std::optional<LoadBalancing> LoadBalancingFromName(std::string_view name);
std::optional<DropPolicy> DropPolicyFromName(std::string_view name);
std::optional<Dispatcher> DispatcherFromName(std::string_view name);

struct MoeArch {
  int64_t num_experts = 0;
  int64_t topk = 0;             // experts of each token
  int64_t ffn_hidden_size = 0;  // width inside one expert
  // The width of all shared experts together, which every token passes; 0: there are none.
  int64_t shared_expert_intermediate_size = 0;
  bool shared_expert_gate = false;  // the shared experts' output is weighed by a sigmoid of the token
  // One entry a layer, true where it has experts; empty: every layer has.
  std::vector<bool> layers;

  RouterScore score_function = RouterScore::kSoftmax;
  // Softmax over all experts before the choice, and no division by the chosen ones' sum (norm_topk_prob = false);
  // otherwise softmax over the chosen ones, which is the same as dividing by their sum.
  bool pre_softmax = false;
  // A bias for each expert that the choice alone sees, moved towards an even load once a step. Sigmoid only.
  bool expert_bias = false;
  double bias_update_rate = 1e-3;
  // Group-limited choice: of num_groups equal groups of experts a token may use group_topk. 0: no groups.
  int64_t num_groups = 0;
  int64_t group_topk = 0;
  double topk_scaling_factor = 1;  // the chosen experts' weights are multiplied by it

  LoadBalancing load_balancing = LoadBalancing::kSequence;
  double aux_loss_coeff = 0;
  double z_loss_coeff = 0;
  // An expert takes at most tokens * topk / num_experts * this of a rank's micro-batch; unset: as many as come.
  std::optional<double> capacity_factor;
  bool pad_to_capacity = false;  // and experts that are not full compute zeros up to it
  DropPolicy drop_policy = DropPolicy::kProbs;
  Dispatcher dispatcher = Dispatcher::kAllToAll;

  bool HasExperts(int64_t layer) const {
    return layers.empty() || (layer < static_cast<int64_t>(layers.size()) && layers[layer]);
  }
  int64_t MoeLayers(int64_t num_layers) const;

  friend bool operator==(const MoeArch&, const MoeArch&) = default;
};

// Every fault, with paths of the spec ("model.moe_router_topk"). Empty when valid.
std::vector<Fault> ValidateMoe(const MoeArch& moe, int64_t num_layers);

// What Hugging Face's Qwen3MoeForCausalLM does not compute, with paths of the spec: a model with such settings trains,
// but cannot be written as a directory that other software loads. Empty when it can.
std::vector<Fault> HfFaults(const MoeArch& moe);

// moe_layer_freq: "2" (every second layer, from the first: layer i where i mod 2 is 0) or one 0 or 1 a layer, "0,1,1"
// (brackets and blanks allowed). Comes back in normal form: empty when every layer has experts. InvalidArgument on
// another spelling or another number of layers.
absl::StatusOr<std::vector<bool>> ParseLayerPattern(std::string_view text, int64_t num_layers);
// A pattern that gives every layer experts becomes the empty one.
std::vector<bool> NormalPattern(std::vector<bool> layers);
// "1" or "0,1,1".
std::string LayerPatternText(const std::vector<bool>& layers);

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_MOE_ARCH_H_
