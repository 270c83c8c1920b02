#include "worker/host/preflight_command.h"

#include <spdlog/spdlog.h>

#include "common/posix_file_system.h"
#include "common/str_cat.h"
#include "engine/arch/model_arch.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/validate.h"
#include "engine/train/datasets.h"
#include "engine/train/run_options.h"
#include "worker/host/device_setup.h"
#include "worker/host/preflight_checks.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::host {
namespace {

using slipway::v1::PreflightResult;
using slipway::v1::TrainingSpec;

// The rules between fields. The result is the architecture, where there is one.
absl::StatusOr<engine::arch::ModelArch> CheckSpec(const TrainingSpec& spec, bool on_cuda, PreflightResult* result) {
  const absl::StatusOr<engine::arch::ModelArch> arch = engine::spec::ArchFromSpec(spec);
  engine::spec::ValidateOptions options;
  if (arch.ok()) options.arch = *arch;
  for (const engine::spec::SpecFault& fault : engine::spec::Validate(spec, options)) {
    AddFault(fault.path, fault.value.empty() ? fault.message : StrCat(fault.value, ": ", fault.message), result);
  }
  if (on_cuda && arch.ok()) {
    const int64_t bytes = engine::train::ComputeType(spec.precision()) == at::kFloat ? 4 : 2;
    for (const Fault& fault : engine::arch::ValidateForCuda(*arch, bytes)) {
      AddFault(fault.path, StrCat(fault.value, ": ", fault.message), result);
    }
  }
  // Explicit fields and presets are Validate's.
  if (spec.model().has_hf_path()) AddFault("model.hf_path", arch.status(), result);
  return arch;
}

void OpenData(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch, const engine::arch::ModelArch& arch,
              PreflightResult* result) {
  const auto datasets = engine::train::OpenDatasets(launch.spec(), arch, JoinPath(launch.output_dir(), "cache"), files);
  if (!datasets.ok()) return AddFault("dataset.path", datasets.status(), result);
  const auto earlier_notes = result->dataset().notes();
  *result->mutable_dataset() = datasets->report;
  result->mutable_dataset()->mutable_notes()->MergeFrom(earlier_notes);
}

}  // namespace

PreflightResult Preflight(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch) {
  PreflightResult result;
  CheckRoots(launch, &result);
  const bool inside = result.faults().empty();  // nothing outside of the roots is opened
  AddFault("parallelism.device", OpenDevice(launch.device()).status(), &result);
  const int before_spec = result.faults_size();
  const absl::StatusOr<engine::arch::ModelArch> arch =
      CheckSpec(launch.spec(), launch.device().starts_with("cuda"), &result);
  const bool spec_is_right = result.faults_size() == before_spec;
  if (inside && arch.ok() && engine::arch::Validate(*arch).empty()) {
    CheckWeights(files, launch, *arch, &result);
    const int before_tokenizer = result.faults_size();
    CheckTokenizer(launch.spec(), *arch, &result);
    // Data needs the tokenizer, and a spec whose numbers can be relied on.
    if (spec_is_right && result.faults_size() == before_tokenizer) OpenData(files, launch, *arch, &result);
  }
  if (inside) {
    CheckWritable(files, "output", launch.output_dir(), &result);
    CheckWritable(files, "checkpoint.path", launch.checkpoint_dir(), &result);
    if (spec_is_right && arch.ok()) CheckSpace(files, launch, *arch, &result);
    // Last, because it reads everything.
    if (spec_is_right && arch.ok()) CheckTokenIds(files, launch.spec(), *arch, &result);
  }
  result.set_ok(result.faults().empty());
  return result;
}

int PreflightCommand(const std::string& launch_file) {
  PosixFileSystem files;
  const auto launch = link::ReadLaunch(files, launch_file);
  if (!launch.ok()) {
    spdlog::critical("{}", launch.status().ToString());
    return 2;
  }
  SetThreads(launch->threads());
  const PreflightResult result = Preflight(files, *launch);
  for (const slipway::v1::SpecFault& fault : result.faults()) spdlog::error("{}: {}", fault.path(), fault.message());
  if (const absl::Status written = link::WritePreflightResult(files, launch->state_dir(), result); !written.ok()) {
    spdlog::critical("{}", written.ToString());
    return 1;
  }
  return 0;
}

}  // namespace slipway::worker::host
