#include "worker/host/preflight_checks.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/arch/param_spec.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/corpus/token_scan.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/hf_model_check.h"
#include "engine/format/indexed_dataset.h"
#include "engine/spec/plan.h"
#include "engine/spec/spec_fields.h"
#include "engine/tokenizer/tokenizer.h"

namespace slipway::worker::host {
namespace {

namespace fs = std::filesystem;
using slipway::v1::PreflightResult;
using slipway::v1::TrainingSpec;
using slipway::worker::v1::WorkerLaunch;

// Links followed as far as the path exists; empty when that fails.
fs::path Canonical(const std::string& path) {
  std::error_code error;
  const fs::path result = fs::weakly_canonical(path, error);
  if (error) return {};
  return result.has_filename() ? result : result.parent_path();  // no trailing slash
}

bool IsBelow(const fs::path& path, const fs::path& root) {
  return !path.empty() && !root.empty() &&
         std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

void CheckHfWeights(FileSystem& files, const std::string& directory, const engine::arch::ModelArch& arch,
                    PreflightResult* result) {
  constexpr char kPath[] = "model.hf_path";
  const auto weights = engine::format::HfWeights::Open(files, directory);
  if (!weights.ok()) return AddFault(kPath, weights.status(), result);
  const auto findings = engine::format::CheckHfModel(*weights, arch);
  if (!findings.ok()) return AddFault(kPath, findings.status(), result);
  for (const std::string& fault : findings->faults) AddFault(kPath, StrCat(directory, ": ", fault), result);
  for (const std::string& note : findings->notes) result->mutable_dataset()->add_notes(StrCat(directory, ": ", note));
}

constexpr absl::Duration kScanLogInterval = absl::Seconds(10);

// How far a scan is, in the log: the end of it is shown when the preflight's deadline passes.
class ScanLog {
 public:
  explicit ScanLog(const std::string& prefix) : prefix_(prefix) { spdlog::info("checking the token ids of {}", prefix_); }

  void operator()(int64_t done, int64_t total) {
    const absl::Duration now = clock_.MonotonicNow();
    if (done < total && now - last_ < kScanLogInterval) return;
    last_ = now;
    const double seconds = std::max(absl::ToDoubleSeconds(now - start_), 1e-3);
    spdlog::info("token ids of {}: {} of {} checked, {} a second", prefix_, FormatBytes(done), FormatBytes(total),
                 FormatBytes(static_cast<int64_t>(static_cast<double>(done) / seconds)));
  }

 private:
  const std::string& prefix_;
  const RealClock clock_;
  const absl::Duration start_ = clock_.MonotonicNow();
  absl::Duration last_ = start_;
};

void CheckPretrained(FileSystem& files, const std::string& directory, const engine::arch::ModelArch& arch,
                     PreflightResult* result) {
  constexpr char kPath[] = "model.pretrained_checkpoint";
  const auto stored = engine::checkpoint::OpenStoredModel(files, directory);
  if (!stored.ok()) return AddFault(kPath, stored.status(), result);
  for (const engine::arch::ParamSpec& parameter : engine::arch::BuildParamTable(arch)) {
    if (!parameter.tied_to.has_value())
      AddFault(kPath, engine::checkpoint::WeightsOf(*stored, parameter).status(), result);
  }
}

}  // namespace

void AddFault(const std::string& path, std::string message, PreflightResult* result) {
  slipway::v1::SpecFault* fault = result->add_faults();
  fault->set_path(path);
  fault->set_message(std::move(message));
}

void AddFault(const std::string& path, const absl::Status& status, PreflightResult* result) {
  if (!status.ok()) AddFault(path, std::string(status.message()), result);
}

void CheckRoots(const WorkerLaunch& launch, PreflightResult* result) {
  if (launch.allowed_roots().empty()) return;
  std::vector<fs::path> roots;
  for (const std::string& root : launch.allowed_roots()) roots.push_back(Canonical(root));
  const auto check = [&](const std::string& field, const std::string& path) {
    const fs::path canonical = Canonical(path);
    if (std::any_of(roots.begin(), roots.end(), [&](const fs::path& root) { return IsBelow(canonical, root); })) return;
    AddFault(field,
             StrCat(path, " lies below none of the allowed roots: ", absl::StrJoin(launch.allowed_roots(), ", "),
                    " (slipwayd --allow-root, or slipway-agent --root, adds one)"),
             result);
  };
  for (const engine::spec::FieldPath& field : engine::spec::AllFields()) {
    if (engine::spec::MetaOf(field.field()).path_kind().empty() || !engine::spec::HasValue(launch.spec(), field))
      continue;
    check(field.path, engine::spec::ValueText(launch.spec(), field));
  }
  if (!launch.output_dir().empty()) check("output", launch.output_dir());
  if (!launch.checkpoint_dir().empty()) check("checkpoint.path", launch.checkpoint_dir());
}

void CheckWeights(FileSystem& files, const WorkerLaunch& launch, const engine::arch::ModelArch& arch,
                  PreflightResult* result) {
  const slipway::v1::ModelSpec& model = launch.spec().model();
  std::vector<std::string> notes;
  const auto resume = engine::checkpoint::FindResumePoint(files, launch.checkpoint_dir(), launch.job_id(),
                                                          {launch.lineage().begin(), launch.lineage().end()}, &notes);
  for (std::string& note : notes) result->mutable_dataset()->add_notes(std::move(note));
  // A job that has run starts from its checkpoint or not at all; a new one's weights are looked at in any case.
  AddFault("checkpoint.path", resume.status(), result);
  if (!resume.ok() && !launch.lineage().empty()) return;
  if (resume.ok() && resume->has_value()) {
    const int64_t last = launch.spec().training().train_iters();
    if ((*resume)->step <= last) return;
    return AddFault("training.train_iters",
                    StrCat(last, " is below the step that the job has reached: its checkpoint ", (*resume)->path,
                           " is of step ", (*resume)->step),
                    result);
  }
  if (model.has_pretrained_checkpoint()) {
    CheckPretrained(files, model.pretrained_checkpoint(), arch, result);
  } else if (model.has_hf_path() && !model.random_init()) {
    CheckHfWeights(files, model.hf_path(), arch, result);
  }
}

void CheckTokenizer(const TrainingSpec& spec, const engine::arch::ModelArch& arch, PreflightResult* result) {
  if (spec.dataset().kind() != "chat") return;
  const auto tokenizer =
      engine::tokenizer::Tokenizer::Load(spec.tokenizer().path(), spec.tokenizer().chat_template_path());
  if (!tokenizer.ok()) return AddFault("tokenizer.path", tokenizer.status(), result);
  if ((*tokenizer)->vocab_size() > arch.vocab_size) {
    AddFault("tokenizer.path",
             StrCat(spec.tokenizer().path(), ": has token id ", (*tokenizer)->vocab_size() - 1,
                    ", the model's embedding has ", arch.vocab_size, " rows"),
             result);
  }
}

void CheckWritable(FileSystem& files, const std::string& path, const std::string& directory, PreflightResult* result) {
  const auto try_it = [&]() -> absl::Status {
    SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(directory));
    const std::string probe = JoinPath(directory, ".slipway-preflight");
    SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(probe, "may be removed\n"));
    return files.RemoveFile(probe);
  };
  if (!directory.empty()) AddFault(path, try_it(), result);
}

void CheckSpace(FileSystem& files, const WorkerLaunch& launch, const engine::arch::ModelArch& arch,
                PreflightResult* result) {
  const std::string& directory = launch.checkpoint_dir();
  const auto plan = engine::spec::MakePlan(launch.spec(), arch);
  if (!plan.ok()) return AddFault("parallelism", plan.status(), result);
  if (const absl::Status space = engine::format::CheckSpace(files, directory, plan->checkpoint_bytes); !space.ok()) {
    return AddFault("checkpoint.path", Annotate(space, "one checkpoint does not fit"), result);
  }
  const absl::StatusOr<int64_t> free = files.FreeBytes(directory);
  if (!free.ok() || *free >= plan->checkpoints_kept_bytes) return;
  result->mutable_dataset()->add_notes(StrCat(directory, " has ", FormatBytes(*free),
                                              " free; the checkpoints that the job keeps take up to ",
                                              FormatBytes(plan->checkpoints_kept_bytes)));
}

void CheckTokenIds(FileSystem& files, const TrainingSpec& spec, const engine::arch::ModelArch& arch,
                   PreflightResult* result) {
  if (spec.dataset().kind() != "indexed") return;
  const auto check = [&](const std::string& field, const std::string& prefix) {
    const auto dataset = engine::format::IndexedDataset::Open(files, prefix);
    if (!dataset.ok()) return;
    ScanLog log(prefix);
    AddFault(field,
             engine::corpus::ScanTokens(files, *dataset, {.vocab_size = arch.vocab_size, .progress = std::ref(log)}),
             result);
  };
  check("dataset.path", spec.dataset().path());
  if (spec.dataset().has_validation_path()) check("dataset.validation_path", spec.dataset().validation_path());
}

}  // namespace slipway::worker::host
