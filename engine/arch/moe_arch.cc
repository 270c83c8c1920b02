#include "engine/arch/moe_arch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace slipway::engine::arch {
namespace {

template <typename Value>
using Names = std::vector<std::pair<Value, std::string_view>>;

const Names<RouterScore> kScores = {{RouterScore::kSoftmax, "softmax"}, {RouterScore::kSigmoid, "sigmoid"}};
const Names<LoadBalancing> kBalancing = {{LoadBalancing::kNone, "none"},
                                         {LoadBalancing::kSequence, "seq_aux_loss"},
                                         {LoadBalancing::kMicroBatch, "aux_loss"},
                                         {LoadBalancing::kGlobalBatch, "global_aux_loss"}};
const Names<DropPolicy> kPolicies = {{DropPolicy::kProbs, "probs"}, {DropPolicy::kPosition, "position"}};
const Names<Dispatcher> kDispatchers = {{Dispatcher::kAllToAll, "alltoall"}, {Dispatcher::kAllGather, "allgather"}};

template <typename Value>
std::string_view NameOf(const Names<Value>& names, Value value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "";
}

template <typename Value>
std::optional<Value> FromName(const Names<Value>& names, std::string_view name) {
  for (const auto& [value, known] : names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

class MoeChecker {
 public:
  template <typename Value>
  void Add(const char* field, const Value& value, std::string message) {
    faults_.push_back({absl::StrCat("model.", field), absl::StrCat(value), std::move(message)});
  }
  void Range(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) Add(field, value, absl::StrCat("must lie between ", low, " and ", high));
  }
  void AtLeastZero(const char* field, double value) {
    if (!(std::isfinite(value) && value >= 0)) Add(field, value, "must be a finite number of at least 0");
  }
  void Positive(const char* field, double value) {
    if (!(std::isfinite(value) && value > 0)) Add(field, value, "must be a finite number above 0");
  }
  bool Sound() const { return faults_.empty(); }
  std::vector<Fault> Take() { return std::move(faults_); }

 private:
  std::vector<Fault> faults_;
};

void CheckGroups(const MoeArch& moe, MoeChecker& check) {
  if (moe.num_groups == 0 && moe.group_topk == 0) return;
  if (moe.num_groups < 1 || moe.num_experts % moe.num_groups != 0) {
    check.Add("moe_router_num_groups", moe.num_groups,
              absl::StrCat("must be above 0 where moe_router_group_topk is given, and model.num_moe_experts = ",
                           moe.num_experts, " a multiple of it"));
    return;
  }
  if (moe.group_topk < 1 || moe.group_topk > moe.num_groups) {
    check.Add("moe_router_group_topk", moe.group_topk,
              absl::StrCat("must lie between 1 and model.moe_router_num_groups = ", moe.num_groups));
    return;
  }
  const int64_t in_groups = moe.num_experts / moe.num_groups * moe.group_topk;
  if (moe.topk % moe.group_topk != 0 || moe.topk > in_groups) {
    check.Add("moe_router_topk", moe.topk,
              absl::StrCat("must be a multiple of model.moe_router_group_topk = ", moe.group_topk, " and at most the ",
                           in_groups, " experts of so many groups"));
  }
}

}  // namespace

std::string_view RouterScoreName(RouterScore score) { return NameOf(kScores, score); }
std::string_view LoadBalancingName(LoadBalancing value) { return NameOf(kBalancing, value); }
std::string_view DropPolicyName(DropPolicy policy) { return NameOf(kPolicies, policy); }
std::string_view DispatcherName(Dispatcher dispatcher) { return NameOf(kDispatchers, dispatcher); }
std::optional<RouterScore> RouterScoreFromName(std::string_view name) { return FromName(kScores, name); }
std::optional<LoadBalancing> LoadBalancingFromName(std::string_view name) { return FromName(kBalancing, name); }
std::optional<DropPolicy> DropPolicyFromName(std::string_view name) { return FromName(kPolicies, name); }
std::optional<Dispatcher> DispatcherFromName(std::string_view name) { return FromName(kDispatchers, name); }

int64_t MoeArch::MoeLayers(int64_t num_layers) const {
  if (layers.empty()) return num_layers;
  int64_t count = 0;
  for (const bool has : layers) count += has ? 1 : 0;
  return count;
}

std::vector<Fault> ValidateMoe(const MoeArch& moe, int64_t num_layers) {
  MoeChecker check;
  check.Range("num_moe_experts", moe.num_experts, 1, 65536);
  check.Range("moe_router_topk", moe.topk, 1, std::max<int64_t>(moe.num_experts, 1));
  check.Range("moe_ffn_hidden_size", moe.ffn_hidden_size, 1, 10'000'000);
  check.Range("moe_shared_expert_intermediate_size", moe.shared_expert_intermediate_size, 0, 10'000'000);
  if (moe.shared_expert_gate && moe.shared_expert_intermediate_size == 0) {
    check.Add("moe_shared_expert_gate", "true", "there are no shared experts: moe_shared_expert_intermediate_size = 0");
  }
  if (!moe.layers.empty() && static_cast<int64_t>(moe.layers.size()) != num_layers) {
    check.Add("moe_layer_freq", LayerPatternText(moe.layers),
              absl::StrCat("names ", moe.layers.size(), " layers; model.num_layers = ", num_layers));
  } else if (moe.MoeLayers(num_layers) == 0) {
    check.Add("moe_layer_freq", LayerPatternText(moe.layers), "leaves no layer with experts");
  }
  const bool sigmoid = moe.score_function == RouterScore::kSigmoid;
  if (moe.pre_softmax && sigmoid) check.Add("moe_router_pre_softmax", "true", "only for the score function softmax");
  if (moe.expert_bias && !sigmoid) {
    check.Add("moe_router_enable_expert_bias", "true", "only for moe_router_score_function = sigmoid");
  }
  check.Positive("moe_router_bias_update_rate", moe.bias_update_rate);
  check.Positive("moe_router_topk_scaling_factor", moe.topk_scaling_factor);
  check.AtLeastZero("moe_aux_loss_coeff", moe.aux_loss_coeff);
  check.AtLeastZero("moe_z_loss_coeff", moe.z_loss_coeff);
  if (moe.capacity_factor.has_value()) check.Positive("moe_expert_capacity_factor", *moe.capacity_factor);
  if (moe.pad_to_capacity && !moe.capacity_factor.has_value()) {
    check.Add("moe_pad_expert_input_to_capacity", "true", "needs model.moe_expert_capacity_factor");
  }
  if (check.Sound()) CheckGroups(moe, check);
  return check.Take();
}

std::vector<Fault> HfFaults(const MoeArch& moe) {
  MoeChecker check;
  constexpr char kWhy[] = "is not what Hugging Face's Qwen3MoeForCausalLM computes, so the model cannot be exported";
  if (moe.score_function != RouterScore::kSoftmax) {
    check.Add("moe_router_score_function", std::string(RouterScoreName(moe.score_function)), kWhy);
  }
  if (moe.num_groups != 0) check.Add("moe_router_num_groups", moe.num_groups, kWhy);
  if (moe.topk_scaling_factor != 1) check.Add("moe_router_topk_scaling_factor", moe.topk_scaling_factor, kWhy);
  if (moe.shared_expert_intermediate_size != 0) {
    check.Add("moe_shared_expert_intermediate_size", moe.shared_expert_intermediate_size, kWhy);
  }
  return check.Take();
}

absl::StatusOr<std::vector<bool>> ParseLayerPattern(std::string_view text, int64_t num_layers) {
  std::string plain;
  for (const char c : text) {
    if (c != ' ' && c != '[' && c != ']') plain.push_back(c);
  }
  const std::vector<std::string> parts = absl::StrSplit(plain, ',');
  std::vector<bool> layers;
  if (int64_t every = 0; parts.size() == 1 && absl::SimpleAtoi(parts[0], &every) && every >= 1) {
    for (int64_t layer = 0; layer < num_layers; ++layer) layers.push_back(layer % every == 0);
  } else {
    const bool is_list = parts.size() > 1 || num_layers == 1;
    for (const std::string& part : parts) {
      if (!is_list || (part != "0" && part != "1")) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", std::string(text),
                         "\" must be a whole number of at least 1, such as 2, or one 0 or 1 "
                         "for each layer, such as 0,1,1"));
      }
      layers.push_back(part == "1");
    }
    if (static_cast<int64_t>(layers.size()) != num_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", std::string(text), "\" names ", layers.size(), " layers; the model has ", num_layers));
    }
  }
  return NormalPattern(std::move(layers));
}

std::vector<bool> NormalPattern(std::vector<bool> layers) {
  for (const bool has : layers) {
    if (!has) return layers;
  }
  return {};
}

std::string LayerPatternText(const std::vector<bool>& layers) {
  if (layers.empty()) return "1";
  return absl::StrJoin(layers, ",", [](std::string* out, bool has) { out->append(has ? "1" : "0"); });
}

}  // namespace slipway::engine::arch
