#include "client/dry_run.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
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

}  // namespace

absl::StatusOr<int> DryRun(const Command& command, const JobFile& job) {
  if (!job.faults.empty()) return engine::spec::FaultsToStatus(job.faults);
  const v1::TrainingSpec resolved = engine::spec::Resolve(job.spec);
  if (!command.is_table()) {
    command.Print(command.format() == OutputFormat::kJson ? engine::spec::SpecToJson(resolved)
                                                          : engine::spec::SpecToYaml(resolved));
  } else if (job.arch) {
    SLIPWAY_ASSIGN_OR_RETURN(const engine::spec::Plan plan, engine::spec::MakePlan(resolved, *job.arch));
    command.Print(engine::spec::PlanText(plan));
  } else {
    command.Say(absl::StrCat("no plan: ", resolved.model().hf_path(), " is not on this machine"));
  }
  const absl::Status answer = AskServer(command, job.spec);
  if (absl::IsUnavailable(answer) || absl::IsDeadlineExceeded(answer)) {
    command.Say(absl::StrCat("not checked by a server: ", answer.message()));
  } else {
    SLIPWAY_RETURN_IF_ERROR(answer);
    command.Say("the server accepts the job");
  }
  return kExitOk;
}

}  // namespace slipway::client
