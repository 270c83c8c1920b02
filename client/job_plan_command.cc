// jobs plan: a job's layout and its costs, without a server and without a GPU.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/plan_report.h"
#include "common/flag_range.h"
#include "common/status_macros.h"
#include "engine/spec/plan.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/suggest.h"

namespace slipway::client {
namespace {

constexpr double kGibibyte = 1024.0 * 1024 * 1024;

struct PlanFlags {
  std::string file;
  std::vector<std::string> overrides;
  int gpus_per_node = 8;
  bool suggest = false;
  int64_t gpus = 0;
  double gpu_memory = 0;
};

absl::StatusOr<engine::spec::Suggestion> Suggest(const PlanFlags& flags, const JobFile& job) {
  if (flags.gpus == 0 || flags.gpu_memory == 0) {
    return absl::InvalidArgumentError("--suggest needs --gpus N and --gpu-memory GIB");
  }
  return engine::spec::SuggestLayout(
      engine::spec::Resolve(job.spec), *job.arch,
      {.gpus = flags.gpus, .gpu_memory_bytes = flags.gpu_memory * kGibibyte, .gpus_per_node = flags.gpus_per_node});
}

// The parallelism section as a job file has it.
std::string ParallelismYaml(const v1::TrainingSpec& spec) {
  v1::TrainingSpec alone;
  *alone.mutable_parallelism() = spec.parallelism();
  return engine::spec::SpecToYaml(alone);
}

absl::StatusOr<int> Plan(const Command& command, const PlanFlags& flags) {
  std::vector<std::string> overrides = flags.overrides;
  if (flags.suggest) {  // the file's own layout does not matter then, nor do its faults
    for (const std::string& field : engine::spec::SuggestedFields()) {
      overrides.push_back(absl::StrCat("parallelism.", field, "=null"));
    }
  }
  SLIPWAY_ASSIGN_OR_RETURN(const JobFile job, LoadJobFile(flags.file, overrides, command.env()));
  SLIPWAY_RETURN_IF_ERROR(engine::spec::FaultsToStatus(job.faults, flags.file));
  if (!job.arch) {
    return absl::FailedPreconditionError(
        absl::StrCat("no plan: the model ", job.spec.model().hf_path(), " is not on this machine"));
  }
  engine::spec::Suggestion suggestion{.spec = engine::spec::Resolve(job.spec), .reasons = {}};
  if (flags.suggest) {
    SLIPWAY_ASSIGN_OR_RETURN(suggestion, Suggest(flags, job));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const engine::spec::Plan plan,
                           engine::spec::MakePlan(suggestion.spec, *job.arch, {.gpus_per_node = flags.gpus_per_node}));
  Json json = engine::spec::PlanJson(plan);
  std::string text;
  for (const std::string& reason : suggestion.reasons) absl::StrAppend(&text, "# ", reason, "\n");
  if (flags.suggest) {
    absl::StrAppend(&text, ParallelismYaml(suggestion.spec), "\n");
    json["reasons"] = suggestion.reasons;
    json["parallelism"] = Json::parse(engine::spec::SpecToJson(suggestion.spec))["parallelism"];
  }
  command.EmitJson(json, absl::StrCat(text, PlanTables(plan)));
  return kExitOk;
}

}  // namespace

void AddJobPlanCommand(CLI::App* jobs, Command* command) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = jobs->add_subcommand("plan", "What a job's layout means and costs; needs no server");
  plan->add_option("-f,--file", flags->file, "Job file in YAML or JSON; - reads standard input")
      ->required()
      ->type_name("FILE");
  plan->add_option("--set", flags->overrides, "section.key=value on top of the file; null resets a field")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  plan->add_option("--gpus-per-node", flags->gpus_per_node, "GPUs of a node")
      ->check(WholeNumberIn(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  plan->add_flag("--suggest", flags->suggest, "Find a layout for --gpus of --gpu-memory instead of the file's");
  plan->add_option("--gpus", flags->gpus, "With --suggest: GPUs of the job")
      ->check(WholeNumberIn(1, int64_t{1} << 20))
      ->type_name("N");
  plan->add_option("--gpu-memory", flags->gpu_memory, "With --suggest: memory of one GPU")
      ->check(NumberIn({.min = 0, .max = 1e6, .exclusive_min = true}))
      ->type_name("GIB");
  command->Run(plan, [=] { return Plan(*command, *flags); }, Outputs::kNoNames);
}

}  // namespace slipway::client
