#include "client/dry_run.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/dataset_report.h"
#include "client/exit_code.h"
#include "common/status_macros.h"
#include "engine/spec/plan.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_writer.h"

namespace slipway::client {
namespace {

constexpr absl::Duration kServerTimeout = absl::Seconds(10);

// What the server says about the job: OK, its faults, or that it is not there.
absl::Status AskServer(const Command& command, const v1::TrainingSpec& spec) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  return connection->CallOnce(&v1::JobService::Stub::CreateJob, connection->jobs(), request, kServerTimeout).status();
}

absl::Status PrintPlan(const Command& command, const JobFile& job, const v1::TrainingSpec& resolved) {
  if (!command.is_table()) {
    command.Print(command.format() == OutputFormat::kJson ? engine::spec::SpecToJson(resolved)
                                                          : engine::spec::SpecToYaml(resolved));
  } else if (job.arch) {
    SLIPWAY_ASSIGN_OR_RETURN(const engine::spec::Plan plan, engine::spec::MakePlan(resolved, *job.arch));
    command.Print(engine::spec::PlanText(plan));
  } else {
    command.Say(absl::StrCat("no plan: ", resolved.model().hf_path(), " is not on this machine"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> DryRun(const Command& command, const JobFile& job, const std::string& file) {
  const v1::TrainingSpec resolved = engine::spec::Resolve(job.spec);
  if (job.faults.empty()) SLIPWAY_RETURN_IF_ERROR(PrintPlan(command, job, resolved));
  // The files are looked at even when the configuration has faults, so that all of them come at once.
  FileReport files = InspectJobFiles(resolved, job.arch);
  if (command.is_table()) {
    for (const auto& [name, value] : files.lines) {
      command.Print(absl::StrCat(name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n"));
    }
  }
  for (const std::string& note : files.notes) command.Say(OneLine(note));
  engine::spec::AddLocations(job.locations, &files.faults);
  engine::spec::SpecFaults faults = job.faults;
  faults.insert(faults.end(), files.faults.begin(), files.faults.end());
  SLIPWAY_RETURN_IF_ERROR(engine::spec::FaultsToStatus(faults));

  const absl::Status answer = AskServer(command, job.spec);
  if (absl::IsUnavailable(answer) || absl::IsDeadlineExceeded(answer)) {
    command.Say(absl::StrCat("not checked by a server: ", answer.message()));
    return kExitOk;
  }
  SLIPWAY_RETURN_IF_ERROR(WithPlaces(answer, job, file));
  command.Say("the server accepts the job");
  return kExitOk;
}

}  // namespace slipway::client
