#include "engine/topology/mesh_validity.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/topology/pipeline_layout.h"

namespace slipway::engine::topology {
namespace {

constexpr char kTpPath[] = "parallelism.tensor_model_parallel_size";
constexpr char kCpPath[] = "parallelism.context_parallel_size";
constexpr char kDpPath[] = "parallelism.data_parallel_size";
constexpr char kPpPath[] = "parallelism.pipeline_model_parallel_size";
constexpr char kVppPath[] = "parallelism.virtual_pipeline_model_parallel_size";
constexpr char kEpPath[] = "parallelism.expert_model_parallel_size";
constexpr char kEtpPath[] = "parallelism.expert_tensor_parallel_size";
constexpr char kSpPath[] = "parallelism.sequence_parallel";
constexpr char kLayoutPath[] = "parallelism.pipeline_model_parallel_layout";
constexpr char kOrderPath[] = "parallelism.order";
constexpr char kVppGroupPath[] = "parallelism.microbatch_group_size_per_vp_stage";

class Rules {
 public:
  Rules(const MeshSizes& sizes, const MeshFacts& facts) : sizes_(sizes), facts_(facts) {}

  bool CheckSizes() {
    const std::pair<const char*, int> named[] = {{kTpPath, sizes_.tp},
                                                 {kCpPath, sizes_.cp},
                                                 {kDpPath, sizes_.dp},
                                                 {kPpPath, sizes_.pp},
                                                 {kEpPath, sizes_.ep},
                                                 {kEtpPath, sizes_.etp},
                                                 {kVppPath, facts_.virtual_pipeline_size}};
    for (const auto& [path, size] : named) {
      if (size < 1) Add(path, size, "must be at least 1");
      if (size > kMaxWorld) Add(path, size, absl::StrCat("must be at most ", kMaxWorld));
    }
    return faults_.empty();
  }

  void CheckWorld(std::string_view order) {
    if (facts_.world_size.has_value() && *facts_.world_size != sizes_.World()) {
      Add(kDpPath, sizes_.dp,
          absl::StrCat("the layout ", MeshText(sizes_), " does not fill the job's ", *facts_.world_size, " slots"));
    }
    const int64_t stage = int64_t{sizes_.tp} * sizes_.cp * sizes_.dp;
    const int64_t experts = int64_t{sizes_.etp} * sizes_.ep;
    if (stage % experts != 0) {
      return Add(sizes_.ep > 1 ? kEpPath : kEtpPath, sizes_.ep > 1 ? sizes_.ep : sizes_.etp,
                 absl::StrCat("the experts of a pipeline stage are laid out over the same ranks as its dense layers: ",
                              "dp * cp * tp = ", sizes_.dp, " * ", sizes_.cp, " * ", sizes_.tp, " = ", stage,
                              " must be a multiple of ep * etp = ", sizes_.ep, " * ", sizes_.etp, " = ", experts));
    }
    if (const absl::StatusOr<Mesh> mesh = Mesh::Create(sizes_, order); !mesh.ok()) {
      const std::string message(mesh.status().message());
      if (Mesh::Create(sizes_).ok()) {
        Add(kOrderPath, std::string(order), message);
      } else {
        Add("parallelism", MeshText(sizes_), message);
      }
    } else if (!order.ends_with("pp") && sizes_.pp > 1 && mesh->edp() != sizes_.dp) {
      Add(kOrderPath, std::string(order),
          absl::StrCat("must end with pp, because the experts' data-parallel size ", mesh->edp(),
                       " is not parallelism.data_parallel_size = ", sizes_.dp));
    }
  }

  void CheckHeads() {
    const int64_t heads = facts_.num_attention_heads;
    const int64_t groups = facts_.num_query_groups;
    const int tp = sizes_.tp;
    if (heads > 0 && heads % tp != 0) {
      Add(kTpPath, tp, absl::StrCat("model.num_attention_heads = ", heads, " is not a multiple of it"));
    }
    if (groups > 0 && groups % tp != 0 && tp % groups != 0) {
      Add(kTpPath, tp, absl::StrCat("model.num_query_groups = ", groups, " is neither a multiple nor a divisor of it"));
    }
    if (heads > 0 && groups > 0 && heads % groups != 0) {
      Add("model.num_query_groups", groups,
          absl::StrCat("model.num_attention_heads = ", heads, " is not a multiple of it"));
    }
    if (heads > 0 && facts_.hidden_size > 0 && facts_.kv_channels == 0 && facts_.hidden_size % heads != 0) {
      Add("model.hidden_size", facts_.hidden_size,
          absl::StrCat("is not a multiple of model.num_attention_heads = ", heads, ", and model.kv_channels is unset"));
    }
    if (facts_.ffn_hidden_size > 0 && facts_.ffn_hidden_size % tp != 0) {
      Add(kTpPath, tp, absl::StrCat("model.ffn_hidden_size = ", facts_.ffn_hidden_size, " is not a multiple of it"));
    }
  }

  void CheckSequence() {
    const int64_t seq = facts_.seq_length;
    if (seq < 0) Add("training.seq_length", seq, "must be above 0");
    if (seq <= 0) return;
    if (facts_.max_position_embeddings > 0 && seq > facts_.max_position_embeddings) {
      Add("training.seq_length", seq,
          absl::StrCat("is above model.max_position_embeddings = ", facts_.max_position_embeddings));
    }
    if (sizes_.cp > 1 && seq % (2 * int64_t{sizes_.cp}) != 0) {
      Add("training.seq_length", seq,
          absl::StrCat("must be a multiple of 2 * ", kCpPath, " = ", 2 * int64_t{sizes_.cp}));
      return;
    }
    // Micro-batches are flattened to tokens, and it is those that sequence parallelism cuts. The product may not fit 64
    // bits, its remainder does.
    const int64_t rows = std::max<int64_t>(facts_.micro_batch_size, 1);
    const int64_t length = seq / sizes_.cp;
    if (facts_.sequence_parallel && (rows % sizes_.tp) * (length % sizes_.tp) % sizes_.tp != 0) {
      Add("training.seq_length", seq,
          absl::StrCat("the ", rows, " * ", length, " tokens of a micro-batch on one context-parallel rank are not a ",
                       "multiple of ", kTpPath, " = ", sizes_.tp, ", which sequence parallelism needs"));
    }
  }

  void CheckSequenceParallel() {
    if (facts_.sequence_parallel && sizes_.tp == 1) {
      Add(kSpPath, "true", absl::StrCat("needs ", kTpPath, " above 1, which is 1"));
    }
  }

  void CheckExperts() {
    if (!facts_.num_experts.has_value()) return;
    const int64_t experts = *facts_.num_experts;
    if (sizes_.ep > 1 && experts == 0) Add(kEpPath, sizes_.ep, "the model has no experts; must be 1");
    if (experts > 0 && experts % sizes_.ep != 0) {
      Add(kEpPath, sizes_.ep, absl::StrCat("model.num_moe_experts = ", experts, " is not a multiple of it"));
    }
    if (experts > 0 && sizes_.tp > 1 && !facts_.sequence_parallel) {
      Add(kSpPath, "false",
          absl::StrCat("a model with ", experts, " experts and ", kTpPath, " = ", sizes_.tp,
                       " needs sequence parallelism; set it to true"));
    }
    if (facts_.moe_ffn_hidden_size > 0 && facts_.moe_ffn_hidden_size % sizes_.etp != 0) {
      Add(kEtpPath, sizes_.etp,
          absl::StrCat("model.moe_ffn_hidden_size = ", facts_.moe_ffn_hidden_size, " is not a multiple of it"));
    }
  }

  void CheckBatch() {
    const int64_t micro = facts_.micro_batch_size;
    const int64_t global = facts_.global_batch_size;
    if (micro < 0) Add("training.micro_batch_size", micro, "must be above 0");
    if (global < 0) Add("training.global_batch_size", global, "must be above 0");
    if (micro <= 0 || global <= 0) return;
    // micro * dp may not fit 64 bits; it is only formed once it is known to be at most `global`.
    if (micro > global / sizes_.dp || global % (micro * sizes_.dp) != 0) {
      Add("training.global_batch_size", global,
          absl::StrCat("is not a multiple of training.micro_batch_size * ", kDpPath, " = ", micro, " * ", sizes_.dp));
      return;
    }
    if (facts_.virtual_pipeline_size > 1 && sizes_.pp > 1) CheckInterleaving(global / (micro * sizes_.dp));
  }

  void CheckPipeline() {
    const int64_t stages = int64_t{sizes_.pp} * facts_.virtual_pipeline_size;
    if (facts_.virtual_pipeline_size > 1 && sizes_.pp == 1) {
      Add(kVppPath, facts_.virtual_pipeline_size, absl::StrCat("needs ", kPpPath, " above 1, which is 1"));
    }
    if (!facts_.pipeline_layout.empty()) return CheckPipelineLayout();
    if (facts_.num_layers > 0 && facts_.num_layers < stages) {
      const std::string virtual_stages =
          facts_.virtual_pipeline_size > 1 ? absl::StrCat(" * ", facts_.virtual_pipeline_size, " virtual") : "";
      Add(kPpPath, sizes_.pp,
          absl::StrCat("model.num_layers = ", facts_.num_layers, " is fewer than the ", sizes_.pp, virtual_stages,
                       " stages; each needs a layer"));
    }
  }

  std::vector<Fault> Take() { return std::move(faults_); }

 private:
  template <typename Value>
  void Add(std::string_view path, const Value& value, std::string message) {
    faults_.push_back({std::string(path), absl::StrCat(value), std::move(message)});
  }

  void CheckPipelineLayout() {
    const absl::StatusOr<std::vector<int>> layers = ParsePipelineLayout(facts_.pipeline_layout);
    if (!layers.ok()) return Add(kLayoutPath, facts_.pipeline_layout, std::string(layers.status().message()));
    const auto stages = static_cast<int64_t>(layers->size());
    if (stages % sizes_.pp != 0) {
      Add(kLayoutPath, facts_.pipeline_layout,
          absl::StrCat("makes ", stages, " stages, which is not a multiple of ", kPpPath, " = ", sizes_.pp));
    } else if (stages / sizes_.pp != facts_.virtual_pipeline_size) {
      Add(kVppPath, facts_.virtual_pipeline_size,
          absl::StrCat(kLayoutPath, " makes ", stages, " stages, ", stages / sizes_.pp, " on each of the ", sizes_.pp,
                       " pipeline ranks; leave it out or set it to ", stages / sizes_.pp));
    }
    const int64_t total = std::accumulate(layers->begin(), layers->end(), int64_t{0});
    if (facts_.num_layers > 0 && total != facts_.num_layers) {
      Add(kLayoutPath, facts_.pipeline_layout,
          absl::StrCat("has ", total, " layers (t), and model.num_layers = ", facts_.num_layers));
    }
  }

  void CheckInterleaving(int64_t microbatches) {
    const int group =
        facts_.microbatch_group_size_per_vp_stage == 0 ? sizes_.pp : facts_.microbatch_group_size_per_vp_stage;
    if (group < sizes_.pp || group > microbatches) {
      Add(kVppGroupPath, group,
          absl::StrCat("must lie between ", kPpPath, " = ", sizes_.pp, " and the ", microbatches,
                       " micro-batches of a step"));
    } else if (microbatches % group != 0 && microbatches % group < sizes_.pp) {
      Add(kVppGroupPath, group,
          absl::StrCat("leaves a last group of ", microbatches % group, " of the ", microbatches,
                       " micro-batches of a step, fewer than ", kPpPath, " = ", sizes_.pp));
    }
  }

  const MeshSizes& sizes_;
  const MeshFacts& facts_;
  std::vector<Fault> faults_;
};

}  // namespace

std::vector<Fault> ValidateMesh(const MeshSizes& sizes, const MeshFacts& facts, std::string_view order) {
  Rules rules(sizes, facts);
  if (!rules.CheckSizes()) return rules.Take();
  rules.CheckWorld(order);
  rules.CheckHeads();
  rules.CheckPipeline();
  rules.CheckSequenceParallel();
  rules.CheckExperts();
  rules.CheckSequence();
  rules.CheckBatch();
  return rules.Take();
}

}  // namespace slipway::engine::topology
