#include "engine/spec/suggest.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/arch/model_estimate.h"
#include "engine/spec/plan.h"
#include "engine/spec/resolve.h"
#include "engine/spec/validate.h"

namespace slipway::engine::spec {
namespace {

enum class Growth { kTensor, kContext, kPipeline };

struct Sizes {
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t pp = 1;
  int64_t vpp = 1;
};

std::string_view FieldOf(Growth growth) {
  switch (growth) {
    case Growth::kTensor:
      return "tensor_model_parallel_size";
    case Growth::kContext:
      return "context_parallel_size";
    case Growth::kPipeline:
      return "pipeline_model_parallel_size";
  }
  return "";
}

class Search {
 public:
  Search(const v1::TrainingSpec& spec, const arch::ModelArch& model, const SuggestOptions& options)
      : spec_(spec), model_(model), options_(options), usable_(options.gpu_memory_bytes * kUsableMemory) {}

  absl::StatusOr<Suggestion> Run() {
    SLIPWAY_RETURN_IF_ERROR(CheckRest());
    Sizes sizes;
    while (true) {
      const std::optional<v1::TrainingSpec> spec = With(sizes);
      std::string reason;
      arch::MemoryEstimate memory;
      if (!spec.has_value()) {
        reason = StrCat("a global batch of ", spec_.training().global_batch_size(), " samples does not divide over ",
                        DataParallel(sizes), " data-parallel ranks with ", spec_.training().micro_batch_size(),
                        " a micro-batch");
      } else {
        SLIPWAY_ASSIGN_OR_RETURN(memory, MemoryOf(*spec));
        if (memory.Total() <= usable_) return Finish(sizes);
        reason = StrCat("a rank needs about ", Bytes(memory.Total()), ", ", Dominant(memory), ", of ", Bytes(usable_));
      }
      const std::optional<Growth> growth = Grow(memory, sizes);
      if (!growth.has_value()) {
        return absl::ResourceExhaustedError(
            StrCat("no layout found on ", options_.gpus, " GPUs of ", Bytes(options_.gpu_memory_bytes), ": with tp ",
                   sizes.tp, ", cp ", sizes.cp, " and pp ", sizes.pp, " ", reason,
                   ", and none of them can be doubled; take more GPUs, a smaller micro-batch or a shorter sequence"));
      }
      reasons_.push_back(StrCat(FieldOf(*growth), " ", ValueOf(*growth, sizes), ": ", reason));
    }
  }

 private:
  static std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }
  static int64_t ValueOf(Growth growth, const Sizes& sizes) {
    return growth == Growth::kTensor ? sizes.tp : growth == Growth::kContext ? sizes.cp : sizes.pp;
  }
  static bool ActivationsDominate(const arch::MemoryEstimate& memory) {
    return memory.activations + memory.logits > memory.weights + memory.gradients + memory.optimizer;
  }
  static std::string Dominant(const arch::MemoryEstimate& memory) {
    const bool activations = ActivationsDominate(memory);
    return StrCat("most of it ", activations ? "activations" : "weights, gradients and optimizer state", " (",
                  Bytes(activations ? memory.activations + memory.logits
                                    : memory.weights + memory.gradients + memory.optimizer),
                  ")");
  }
  int64_t DataParallel(const Sizes& sizes) const { return options_.gpus / (sizes.tp * sizes.cp * sizes.pp); }

  // The faults of everything but the layout.
  absl::Status CheckRest() const {
    v1::TrainingSpec alone = Layout({});
    alone.mutable_parallelism()->set_data_parallel_size(1);
    return FaultsToStatus(Validate(alone, {.arch = model_, .require_absolute_paths = false}));
  }

  v1::TrainingSpec Layout(const Sizes& sizes) const {
    v1::TrainingSpec spec = spec_;
    v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
    for (const std::string& name : SuggestedFields()) {
      parallelism->GetReflection()->ClearField(parallelism, parallelism->GetDescriptor()->FindFieldByName(name));
    }
    parallelism->set_data_parallel_size(static_cast<int>(DataParallel(sizes)));
    parallelism->set_tensor_model_parallel_size(static_cast<int>(sizes.tp));
    parallelism->set_context_parallel_size(static_cast<int>(sizes.cp));
    parallelism->set_pipeline_model_parallel_size(static_cast<int>(sizes.pp));
    parallelism->set_virtual_pipeline_model_parallel_size(static_cast<int>(sizes.vpp));
    parallelism->set_sequence_parallel(sizes.tp > 1);
    return Resolve(spec);
  }

  // The spec with this layout; nothing when it is not valid.
  std::optional<v1::TrainingSpec> With(const Sizes& sizes) const {
    const int64_t ranks = sizes.tp * sizes.cp * sizes.pp;
    if (options_.gpus % ranks != 0) return std::nullopt;
    v1::TrainingSpec spec = Layout(sizes);
    if (!Validate(spec, {.arch = model_, .require_absolute_paths = false}).empty()) return std::nullopt;
    return spec;
  }

  // Whether the model allows these sizes, whatever the batch.
  bool ModelAllows(const Sizes& sizes) const {
    const int64_t ranks = sizes.tp * sizes.cp * sizes.pp;
    if (options_.gpus % ranks != 0) return false;
    v1::TrainingSpec spec = Layout(sizes);
    spec.mutable_training()->set_global_batch_size(spec.training().micro_batch_size() * DataParallel(sizes) * sizes.pp);
    return Validate(spec, {.arch = model_, .require_absolute_paths = false}).empty();
  }

  absl::StatusOr<arch::MemoryEstimate> MemoryOf(const v1::TrainingSpec& spec) const {
    SLIPWAY_ASSIGN_OR_RETURN(const arch::MemoryOptions memory, MemoryOptionsOf(spec, model_));
    return arch::EstimatePeakMemory(model_, memory);
  }

  // Doubles what helps first and is allowed.
  std::optional<Growth> Grow(const arch::MemoryEstimate& memory, Sizes& sizes) const {
    std::vector<Growth> order = {Growth::kTensor, Growth::kPipeline, Growth::kContext};
    if (ActivationsDominate(memory)) {
      const bool long_rows = spec_.training().seq_length() / (2 * sizes.cp) >= kContextTokens;
      order = long_rows ? std::vector<Growth>{Growth::kContext, Growth::kTensor, Growth::kPipeline}
                        : std::vector<Growth>{Growth::kTensor, Growth::kPipeline};
    }
    for (const Growth growth : order) {
      Sizes more = sizes;
      (growth == Growth::kTensor ? more.tp : growth == Growth::kContext ? more.cp : more.pp) *= 2;
      if (growth == Growth::kTensor && more.tp > options_.gpus_per_node) continue;
      if (!ModelAllows(more)) continue;
      sizes = more;
      return growth;
    }
    return std::nullopt;
  }

  // With virtual stages, where they suit.
  absl::StatusOr<Suggestion> Finish(Sizes sizes) {
    const int64_t layers = model_.num_layers;
    for (int64_t vpp = kMostVirtualStages; vpp > 1 && sizes.pp > 1; --vpp) {
      const int64_t stages = sizes.pp * vpp;
      if (layers % stages != 0 || layers / stages < 2) continue;
      Sizes more = sizes;
      more.vpp = vpp;
      const std::optional<v1::TrainingSpec> spec = With(more);
      if (!spec.has_value() || MicroBatchesPerStep(*spec) % sizes.pp != 0) continue;
      SLIPWAY_ASSIGN_OR_RETURN(const arch::MemoryEstimate memory, MemoryOf(*spec));
      if (memory.Total() > usable_) continue;
      reasons_.push_back(StrCat("virtual_pipeline_model_parallel_size ", vpp, ": ", layers, " layers make ", stages,
                                " stages of ", layers / stages, ", and the bubble shrinks to 1 / ", vpp));
      sizes = more;
      break;
    }
    return Suggestion{.spec = *With(sizes), .reasons = std::move(reasons_)};
  }

  const v1::TrainingSpec& spec_;
  const arch::ModelArch& model_;
  const SuggestOptions options_;
  const double usable_;
  std::vector<std::string> reasons_;
};

}  // namespace

std::vector<std::string> SuggestedFields() {
  return {"data_parallel_size",
          "tensor_model_parallel_size",
          "pipeline_model_parallel_size",
          "context_parallel_size",
          "virtual_pipeline_model_parallel_size",
          "pipeline_model_parallel_layout",
          "microbatch_group_size_per_vp_stage",
          "sequence_parallel",
          "tp_comm_overlap"};
}

absl::StatusOr<Suggestion> SuggestLayout(const v1::TrainingSpec& spec, const arch::ModelArch& model,
                                         const SuggestOptions& options) {
  if (options.gpus < 1 || options.gpus_per_node < 1 || options.gpu_memory_bytes <= 0) {
    return absl::InvalidArgumentError(StrCat("a layout for ", options.gpus, " GPUs, ", options.gpus_per_node,
                                             " a node, of ", options.gpu_memory_bytes,
                                             " bytes each: all must be above 0"));
  }
  return Search(spec, model, options).Run();
}

}  // namespace slipway::engine::spec
