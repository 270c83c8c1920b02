#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"
#include "engine/arch/presets.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/moe_fields.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_rules.h"
#include "engine/topology/mesh_validity.h"

namespace slipway::engine::spec {
namespace {

// Products of numbers that users write may leave 64 bits.
__extension__ using Wide = __int128;

class Faults {
 public:
  Faults(const WrongFields& wrong, SpecFaults* out) : wrong_(wrong), out_(out) {}
  // A rule over these fields says something.
  bool Sound(std::initializer_list<std::string_view> paths) const { return wrong_.Sound(paths); }
  void Add(std::string path, std::string value, std::string message) {
    out_->push_back({.path = std::move(path), .value = std::move(value), .message = std::move(message)});
  }
  void Add(std::string path, std::string message) { Add(std::move(path), "", std::move(message)); }
  void AddNumber(std::string path, double value, std::string message) {
    Add(std::move(path), DoubleText(value), std::move(message));
  }
  void AddNumber(std::string path, int64_t value, std::string message) {
    Add(std::move(path), StrCat(value), std::move(message));
  }

 private:
  const WrongFields& wrong_;
  SpecFaults* out_;
};

// Fields that make an architecture, in the order of the proto. Dropout, the padding of the vocabulary and how experts
// are trained go with any model.
std::vector<std::string> ArchitectureFieldsOf(const v1::TrainingSpec& spec) {
  std::vector<std::string> set;
  for (const FieldPath& field : AllFields()) {
    if (field.fields.front()->name() != "model" || !HasValue(spec, field)) continue;
    const std::string& name = field.fields[1]->name();
    if (name == "hf_path" || name == "preset" || name == "random_init" || name == "pretrained_checkpoint" ||
        name == "attention_dropout" || name == "hidden_dropout" || name == "make_vocab_size_divisible_by" ||
        IsRoutingSetting(name)) {
      continue;
    }
    if (set.empty() || set.back() != StrCat("model.", name)) set.push_back(StrCat("model.", name));
  }
  return set;
}

// A field that has no effect on this kind of job, set to something else than its default.
void RefuseUnlessDefault(const v1::TrainingSpec& spec, std::string_view path, std::string_view why, Faults* faults) {
  const FieldPath field = *FindField(path);
  const std::string value = ValueText(spec, field);
  if (HasValue(spec, field) && value != MetaOf(field.field()).default_value()) {
    faults->Add(field.path, value, std::string(why));
  }
}

// The shares of "969,30,1"; empty when it is not that.
std::vector<double> SplitShares(std::string_view text) {
  std::vector<double> shares;
  double sum = 0;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::string_view part = ToStd(absl::StripAsciiWhitespace(piece));
    double share = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), share);
    if (error != std::errc() || end != part.data() + part.size() || !std::isfinite(share) || share < 0) return {};
    shares.push_back(share);
    sum += share;
  }
  if (shares.size() > 3 || sum <= 0) return {};
  shares.resize(3, 0);
  return shares;
}

void CheckChat(const v1::TrainingSpec& spec, Faults* faults) {
  if (!spec.tokenizer().has_path() && faults->Sound({"tokenizer.path", "model.hf_path"})) {
    faults->Add("tokenizer.path", "is required for chat data when model.hf_path is not given");
  }
  RefuseUnlessDefault(spec, "dataset.split", "only for indexed data; give dataset.validation_path", faults);
  RefuseUnlessDefault(spec, "dataset.eod_mask_loss", "only for indexed data", faults);
}

void CheckIndexed(const v1::TrainingSpec& spec, Faults* faults) {
  const v1::DatasetSpec& dataset = spec.dataset();
  if (faults->Sound({"dataset.split"}) && SplitShares(dataset.split()).empty()) {
    faults->Add("dataset.split", dataset.split(), "must be up to three shares that are not all 0, such as 969,30,1");
  }
  RefuseUnlessDefault(spec, "dataset.overlong", "only for chat data", faults);
}

void CheckSampleOrder(const v1::TrainingSpec& spec, Faults* faults) {
  const v1::DatasetSpec& dataset = spec.dataset();
  if (!faults->Sound({"dataset.sample_order", "dataset.requested_samples", "dataset.shuffle"})) return;
  if (dataset.sample_order() != "megatron") {
    if (dataset.has_requested_samples()) {
      faults->AddNumber("dataset.requested_samples", dataset.requested_samples(),
                        "only for dataset.sample_order megatron");
    }
    return;
  }
  if (dataset.kind() != "indexed") {
    faults->Add("dataset.sample_order", "megatron",
                StrCat("only for indexed data, and dataset.kind is ", dataset.kind()));
  }
  if (!dataset.shuffle()) faults->Add("dataset.shuffle", "false", "only for dataset.sample_order epoch");
  const Wide needed = static_cast<Wide>(spec.training().train_iters()) * spec.training().global_batch_size();
  if (!faults->Sound({"training.train_iters", "training.global_batch_size"})) return;
  if (dataset.has_requested_samples() && needed > dataset.requested_samples()) {
    faults->AddNumber("training.train_iters", spec.training().train_iters(),
                      StrCat("times training.global_batch_size = ", spec.training().global_batch_size(),
                             " is more than the dataset.requested_samples = ", dataset.requested_samples(),
                             " that the order was built for"));
  }
}

void CheckEvaluation(const v1::TrainingSpec& spec, Faults* faults) {
  const v1::DatasetSpec& dataset = spec.dataset();
  if (spec.validation().eval_interval() == 0) return;
  if (!faults->Sound({"validation.eval_interval", "dataset.validation_path", "dataset.split"})) return;
  if (dataset.kind() == "chat" && !dataset.has_validation_path()) {
    faults->Add("dataset.validation_path",
                StrCat("is required when validation.eval_interval = ", spec.validation().eval_interval()));
  }
  const std::vector<double> shares = SplitShares(dataset.split());
  if (dataset.kind() == "indexed" && !dataset.has_validation_path() && !shares.empty() && shares[1] == 0) {
    faults->Add(
        "dataset.split", dataset.split(),
        StrCat("leaves no validation share for validation.eval_interval = ", spec.validation().eval_interval()));
  }
}

void CheckWarmup(const v1::SchedulerSpec& scheduler, Faults* faults) {
  if (!faults->Sound({"scheduler.lr_warmup_iters", "scheduler.lr_warmup_fraction"})) return;
  if (scheduler.has_lr_warmup_iters() && scheduler.has_lr_warmup_fraction()) {
    faults->AddNumber("scheduler.lr_warmup_fraction", scheduler.lr_warmup_fraction(),
                      StrCat("give either it or scheduler.lr_warmup_iters = ", scheduler.lr_warmup_iters()));
    return;
  }
  if (scheduler.lr_warmup_fraction() >= 1) {
    faults->AddNumber("scheduler.lr_warmup_fraction", scheduler.lr_warmup_fraction(),
                      "must be below 1: warm-up ends before decay does");
  }
  if (!faults->Sound({"scheduler.lr_decay_iters", "training.train_iters"})) return;
  if (scheduler.lr_warmup_iters() > 0 && scheduler.has_lr_decay_iters() &&
      scheduler.lr_warmup_iters() >= scheduler.lr_decay_iters()) {
    faults->AddNumber("scheduler.lr_warmup_iters", scheduler.lr_warmup_iters(),
                      StrCat("must be below scheduler.lr_decay_iters = ", scheduler.lr_decay_iters()));
  }
}

void CheckAnnealing(const v1::SchedulerSpec& scheduler, Faults* faults) {
  if (!faults->Sound({"scheduler.lr_decay_style", "scheduler.lr_wsd_decay_iters"})) return;
  const bool is_wsd = scheduler.lr_decay_style() == "WSD";
  if (is_wsd && !scheduler.has_lr_wsd_decay_iters()) {
    faults->Add("scheduler.lr_wsd_decay_iters", "is required for scheduler.lr_decay_style WSD");
  }
  if (!scheduler.has_lr_wsd_decay_iters()) return;
  const int64_t iters = scheduler.lr_wsd_decay_iters();
  if (!is_wsd) {
    faults->AddNumber("scheduler.lr_wsd_decay_iters", iters,
                      StrCat("only for scheduler.lr_decay_style WSD, and it is ", scheduler.lr_decay_style()));
  } else if (scheduler.has_lr_decay_iters() && scheduler.lr_wsd_decay_iters() > scheduler.lr_decay_iters() &&
             faults->Sound({"scheduler.lr_decay_iters", "training.train_iters"})) {
    faults->AddNumber("scheduler.lr_wsd_decay_iters", iters,
                      StrCat("must be at most scheduler.lr_decay_iters = ", scheduler.lr_decay_iters()));
  }
}

void CheckRecompute(const v1::TrainingSpec& spec, const std::optional<arch::ModelArch>& arch, Faults* faults) {
  if (!faults->Sound({"training.recompute_granularity"})) return;
  const v1::TrainSpec& training = spec.training();
  const std::string& granularity = training.recompute_granularity();
  if (granularity != "selective" && training.recompute_modules_size() > 0) {
    faults->Add("training.recompute_modules", ValueText(spec, *FindField("training.recompute_modules")),
                StrCat("only for training.recompute_granularity selective, and it is ", granularity));
  }
  for (const std::string& module : training.recompute_modules()) {
    if (module == "moe" && arch.has_value() && !arch->moe.has_value()) {
      faults->Add("training.recompute_modules", module, "this model has no experts; leave it out");
    }
  }
  if (granularity != "full") {
    const std::string why = StrCat("only for training.recompute_granularity full, and it is ", granularity);
    if (training.has_recompute_method()) {
      faults->Add("training.recompute_method", training.recompute_method(), why);
    }
    if (training.has_recompute_num_layers()) {
      faults->AddNumber("training.recompute_num_layers", int64_t{training.recompute_num_layers()}, why);
    }
    return;
  }
  if (!training.has_recompute_method()) {
    faults->Add("training.recompute_method", "is required for training.recompute_granularity full: uniform or block");
  }
  if (!arch.has_value() || !faults->Sound({"parallelism"})) return;
  const auto partition = PartitionOf(spec.parallelism(), arch->num_layers);
  if (!partition.ok()) return;  // told by the rules of the layout
  int most = 0;
  for (const topology::PipelineStage& stage : partition->stages) most = std::max(most, stage.num_layers);
  if (training.recompute_num_layers() > most) {
    faults->AddNumber("training.recompute_num_layers", int64_t{training.recompute_num_layers()},
                      StrCat("a stage has at most ", most, " of the ", arch->num_layers, " layers"));
  }
}

void CheckContextParallel(const v1::TrainingSpec& spec, const topology::MeshFacts& facts, Faults* faults) {
  const v1::ParallelismSpec& sizes = spec.parallelism();
  const int64_t cp = sizes.context_parallel_size(), tp = std::max(sizes.tensor_model_parallel_size(), 1);
  if (cp <= 1) return;
  const bool exchanges_heads = sizes.cp_comm_type() == "a2a";
  if (exchanges_heads && facts.num_attention_heads % tp == 0 && facts.num_attention_heads / tp % cp != 0) {
    faults->Add("parallelism.cp_comm_type", "a2a",
                StrCat("exchanges tokens for heads, and the ", facts.num_attention_heads / tp,
                       " heads of a tensor-parallel rank do not divide over parallelism.context_parallel_size = ", cp,
                       "; p2p and all_gather go with any number of heads"));
  }
  if (spec.model().attention_dropout() > 0 && !exchanges_heads) {
    faults->AddNumber(
        "model.attention_dropout", spec.model().attention_dropout(),
        StrCat("with parallelism.context_parallel_size = ", cp,
               " needs parallelism.cp_comm_type a2a, which computes whole rows, and it is ", sizes.cp_comm_type()));
  }
}

// The spec's fields of experts, given the architecture that they make or go with.
void CheckExperts(const v1::TrainingSpec& spec, const arch::ModelArch& arch, Faults* faults) {
  const std::vector<std::string> given = MoeFieldsOf(spec);
  if (!arch.moe && !given.empty()) {
    faults->Add(given.front(), StrCat("the model has no experts; leave out ", absl::StrJoin(given, ", ")));
  }
  const std::string& pattern = spec.model().moe_layer_freq();
  if (!arch.moe || pattern.empty()) return;
  if (const auto layers = arch::ParseLayerPattern(pattern, arch.num_layers); !layers.ok()) {
    faults->Add("model.moe_layer_freq", pattern, std::string(layers.status().message()));
  }
}

}  // namespace

bool WrongFields::Sound(std::initializer_list<std::string_view> paths) const {
  const auto is_in = [](std::string_view path, std::string_view section) {
    return path == section || (path.starts_with(section) && path[section.size()] == '.');
  };
  return std::none_of(paths_.begin(), paths_.end(), [&](const std::string& wrong) {
    return std::any_of(paths.begin(), paths.end(),
                       [&](std::string_view path) { return is_in(path, wrong) || is_in(wrong, path); });
  });
}

void CheckModel(const v1::TrainingSpec& spec, const ValidateOptions& options, const WrongFields& wrong,
                SpecFaults* out) {
  Faults faults(wrong, out);
  const v1::ModelSpec& model = spec.model();
  const std::vector<std::string> explicit_fields = ArchitectureFieldsOf(spec);
  if (model.has_hf_path() && model.has_preset()) {
    faults.Add("model.preset", model.preset(), "give either it or model.hf_path");
  } else if (model.has_hf_path() && !explicit_fields.empty()) {
    faults.Add(explicit_fields.front(),
               StrCat("the architecture comes from model.hf_path; leave out ", absl::StrJoin(explicit_fields, ", ")));
  } else if (!model.has_hf_path() && !model.has_preset() && explicit_fields.empty()) {
    if (faults.Sound({"model"}))
      faults.Add("model", "give one of hf_path, preset, or explicit fields (architecture, num_layers, …)");
  } else if (model.has_preset()) {
    if (const auto preset = arch::FindPreset(model.preset()); !preset.ok()) {
      faults.Add("model.preset", model.preset(), std::string(preset.status().message()));
    }
  } else if (!model.has_hf_path()) {
    for (const std::string_view name :
         {"architecture", "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size"}) {
      const FieldPath field = *FindField(StrCat("model.", name));
      if (!HasValue(spec, field) && faults.Sound({field.path, "model.hf_path", "model.preset"}))
        faults.Add(field.path, "is required with explicit fields");
    }
  }
  if (model.random_init() && model.has_pretrained_checkpoint()) {
    faults.Add("model.random_init", "true", "the first weights come from model.pretrained_checkpoint; leave it out");
  }
  // Faults of single fields come first; those of the whole only make sense on top of sound fields.
  const std::optional<arch::ModelArch> made = options.arch ? options.arch : ArchFromFields(model);
  const bool positions_known = model.has_max_position_embeddings() || faults.Sound({"training.seq_length"});
  if (!made || !positions_known || !faults.Sound({"model"})) return;
  if (out->empty()) CheckExperts(spec, *made, &faults);
  if (out->empty()) AppendFaults(arch::Validate(*made), out);
  if (!out->empty() || !made->moe || !spec.checkpoint().export_hf()) return;
  for (const Fault& fault : arch::HfFaults(*made->moe)) {
    faults.Add(fault.path, fault.value, fault.message + "; set checkpoint.export_hf to false to train it all the same");
  }
}

void CheckData(const v1::TrainingSpec& spec, const WrongFields& wrong, SpecFaults* out) {
  Faults faults(wrong, out);
  if (!faults.Sound({"dataset.kind"})) return;  // all of it depends on the kind
  const v1::DatasetSpec& dataset = spec.dataset();
  const bool is_mock = dataset.kind() == "mock";
  if (dataset.kind() == "chat") CheckChat(spec, &faults);
  if (dataset.kind() == "indexed") CheckIndexed(spec, &faults);
  if (is_mock && dataset.has_path()) faults.Add("dataset.path", dataset.path(), "mock data has no files; leave it out");
  if (is_mock && dataset.has_validation_path()) {
    faults.Add("dataset.validation_path", dataset.validation_path(), "mock data has no files; leave it out");
  }
  if (!is_mock) {
    RefuseUnlessDefault(spec, "dataset.mock_num_samples", "only for mock data", &faults);
    if (dataset.has_kind() && !dataset.has_path()) {
      faults.Add("dataset.path", StrCat("is required for ", dataset.kind(), " data"));
    }
  }
  CheckSampleOrder(spec, &faults);
  CheckEvaluation(spec, &faults);
}

void CheckSchedule(const v1::TrainingSpec& spec, const WrongFields& wrong, SpecFaults* out) {
  Faults faults(wrong, out);
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  const bool lr_known = optimizer.has_lr() && faults.Sound({"optimizer.lr"});
  if (lr_known && optimizer.min_lr() > optimizer.lr()) {
    faults.AddNumber("optimizer.min_lr", optimizer.min_lr(),
                     StrCat("must be at most optimizer.lr = ", DoubleText(optimizer.lr())));
  }
  if (lr_known && spec.scheduler().lr_warmup_init() > optimizer.lr()) {
    faults.AddNumber("scheduler.lr_warmup_init", spec.scheduler().lr_warmup_init(),
                     StrCat("must be at most optimizer.lr = ", DoubleText(optimizer.lr())));
  }
  CheckWarmup(spec.scheduler(), &faults);
  CheckAnnealing(spec.scheduler(), &faults);
  // Counters of samples and tokens are 64-bit integers.
  constexpr Wide kMaxTokens = Wide{1} << 62;
  const v1::TrainSpec& training = spec.training();
  const Wide samples = static_cast<Wide>(training.train_iters()) * training.global_batch_size();
  if (training.train_iters() > 0 && training.global_batch_size() > 0 &&
      faults.Sound({"training.train_iters", "training.global_batch_size", "training.seq_length"}) &&
      (samples > kMaxTokens || samples * training.seq_length() > kMaxTokens)) {
    faults.AddNumber("training.train_iters", training.train_iters(),
                     StrCat("times training.global_batch_size = ", training.global_batch_size(),
                            " times training.seq_length = ", training.seq_length(), " is above 2^62 tokens"));
  }
}

void CheckLayout(const v1::TrainingSpec& spec, const ValidateOptions& options, const WrongFields& wrong,
                 SpecFaults* out) {
  Faults faults(wrong, out);
  if (!faults.Sound({"parallelism"})) return;
  const v1::ParallelismSpec& sizes = spec.parallelism();
  const Wide world = static_cast<Wide>(sizes.data_parallel_size()) * sizes.tensor_model_parallel_size() *
                     sizes.pipeline_model_parallel_size() * sizes.context_parallel_size();
  if (world > topology::kMaxWorld) {
    faults.Add("parallelism", StrCat("makes more than ", topology::kMaxWorld, " ranks"));
    return;
  }
  topology::MeshFacts facts;
  const std::optional<arch::ModelArch> made = options.arch ? options.arch : ArchFromFields(spec.model());
  if (made && faults.Sound({"model"}) && arch::Validate(*made).empty()) {
    facts.num_layers = made->num_layers;
    facts.hidden_size = made->hidden_size;
    facts.ffn_hidden_size = made->ffn_hidden_size;
    facts.num_attention_heads = made->num_attention_heads;
    facts.num_query_groups = made->num_query_groups;
    facts.kv_channels = made->kv_channels;
    facts.max_position_embeddings = made->max_position_embeddings;
    facts.num_experts = made->moe ? made->moe->num_experts : 0;
    facts.moe_ffn_hidden_size = made->moe ? made->moe->ffn_hidden_size : 0;
  }
  CheckRecompute(spec, made, &faults);
  if (faults.Sound({"training.seq_length"})) facts.seq_length = spec.training().seq_length();
  if (faults.Sound({"training.micro_batch_size", "training.global_batch_size"})) {
    facts.micro_batch_size = spec.training().micro_batch_size();
    facts.global_batch_size = spec.training().global_batch_size();
  }
  facts.virtual_pipeline_size = sizes.virtual_pipeline_model_parallel_size();
  facts.pipeline_layout = sizes.pipeline_model_parallel_layout();
  facts.microbatch_group_size_per_vp_stage = sizes.microbatch_group_size_per_vp_stage();
  facts.sequence_parallel = sizes.sequence_parallel();
  if (sizes.virtual_pipeline_model_parallel_size() == 1) {
    RefuseUnlessDefault(spec, "parallelism.microbatch_group_size_per_vp_stage",
                        "only with parallelism.virtual_pipeline_model_parallel_size above 1, which is 1", &faults);
  }
  if (sizes.tp_comm_overlap() && sizes.tensor_model_parallel_size() == 1) {
    faults.Add("parallelism.tp_comm_overlap", "true",
               "needs parallelism.tensor_model_parallel_size above 1, which is 1");
  }
  CheckContextParallel(spec, facts, &faults);
  AppendFaults(topology::ValidateMesh(MeshSizesOf(sizes), facts, sizes.order()), out);
}

}  // namespace slipway::engine::spec
