// jobs submit, list, describe, metrics, events, and the verbs.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/dry_run.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/job_text.h"
#include "common/flag_range.h"
#include "common/status_macros.h"
#include "common/text.h"
#include "engine/spec/spec_overrides.h"
#include "engine/spec/spec_writer.h"

namespace slipway::client {
namespace {

struct SubmitFlags {
  std::string file;
  std::vector<std::string> overrides;
  std::string request_id;
  bool dry_run = false;
  bool watch = false;
};

absl::StatusOr<int> Submit(const Command& command, const SubmitFlags& flags) {
  SLIPWAY_ASSIGN_OR_RETURN(const JobFile job, LoadJobFile(flags.file, flags.overrides, command.env()));
  if (flags.dry_run) return DryRun(command, job);
  SLIPWAY_RETURN_IF_ERROR(engine::spec::FaultsToStatus(job.faults, flags.file));
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::CreateJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_request_id(flags.request_id.empty() ? NewRequestId() : flags.request_id);
  const absl::StatusOr<v1::CreateJobResponse> response =
      connection->Call(&v1::JobService::Stub::CreateJob, connection->jobs(), request);
  if (!response.ok()) return WithLocations(response.status(), job);
  const v1::Job& created = response->job();
  // Watched by a program, the job comes as the first of the updates.
  const bool in_updates =
      flags.watch && (command.format() == OutputFormat::kJson || command.format() == OutputFormat::kYaml);
  if (!in_updates) command.Emit(created, absl::StrCat(created.id(), "\n"), absl::StrCat(created.id(), "\n"));
  if (!flags.watch) {
    command.Say(
        absl::StrCat("submitted ", OneLine(created.name()), "; follow it with: slipway jobs watch ", created.id()));
    return kExitOk;
  }
  return WatchToEnd(command, *connection, created, 0);
}

struct ListFlags {
  std::string project;
  std::string name;
  std::vector<std::string> states;
  int64_t limit = 50;
};

std::string JobTable(const v1::ListJobsResponse& jobs) {
  Table table({"ID", "NAME", "STATE", "STEP", "LOSS", "AGE", "REASON"});
  for (const v1::Job& job : jobs.jobs()) {
    const v1::JobProgress& progress = job.progress();
    table.Add({job.id(), OneLine(job.name()), StateText(job.state()), ProgressText(progress),
               progress.has_last_step_metrics() ? Number(progress.last_step_metrics().loss(), 5) : "-",
               AgeText(job.create_time(), absl::Now()), job.state_reason()});
  }
  return table.Text();
}

absl::StatusOr<int> List(const Command& command, const ListFlags& flags) {
  constexpr int64_t kPage = 1000;
  v1::ListJobsRequest request;
  request.set_project(flags.project);
  request.set_name(flags.name);
  for (const std::string& text : flags.states) {
    const auto state = StateFromText(text);
    if (!state)
      return absl::InvalidArgumentError(
          absl::StrCat("--state ", text, ": no such state; e.g. running, queued, failed"));
    request.add_states(*state);
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::ListJobsResponse all;
  do {
    request.set_page_size(static_cast<int32_t>(std::min(kPage, flags.limit - all.jobs_size())));
    SLIPWAY_ASSIGN_OR_RETURN(v1::ListJobsResponse page,
                             connection->Call(&v1::JobService::Stub::ListJobs, connection->jobs(), request));
    all.MergeFrom(page);
    all.set_next_page_token(page.next_page_token());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && all.jobs_size() < flags.limit);
  const std::string names =
      absl::StrJoin(all.jobs(), "", [](std::string* out, const v1::Job& job) { absl::StrAppend(out, job.id(), "\n"); });
  if (all.jobs().empty() && command.is_table()) {
    command.Say("no jobs");
    return kExitOk;
  }
  command.Emit(all, JobTable(all), names);
  if (!all.next_page_token().empty())
    command.Say(absl::StrCat("the newest ", all.jobs_size(), " are shown; more with --limit"));
  return kExitOk;
}

absl::StatusOr<int> Describe(const Command& command, const std::string& reference, bool spec_only) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, reference));
  if (spec_only) {
    EmitSpec(command, job.spec(), absl::StrCat(job.id(), "\n"));
    return kExitOk;
  }
  command.Emit(job, DescribeJob(job, absl::Now()), absl::StrCat(job.id(), "\n"));
  return kExitOk;
}

struct MetricFlags {
  std::string job;
  int64_t from_step = 0;
  int64_t to_step = 0;
  int32_t max_records = 1000;
};

std::string MetricTable(const v1::QueryMetricsResponse& response) {
  Table table({"STEP", "LOSS", "LR", "GRAD_NORM", "TOKENS", "TOK/S", "S/STEP", "NOTE"});
  for (const v1::MetricRecord& record : response.records()) {
    if (record.has_eval()) {
      const v1::EvalMetrics& eval = record.eval();
      table.Add({absl::StrCat(eval.step()), Number(eval.loss(), 6), "-", "-", absl::StrCat(eval.loss_tokens()), "-",
                 Number(eval.seconds(), 3), absl::StrCat("eval, perplexity ", Number(eval.perplexity(), 5))});
    } else {
      const v1::StepMetrics& step = record.step();
      table.Add({absl::StrCat(step.step()), Number(step.loss(), 6), Number(step.learning_rate(), 4),
                 Number(step.grad_norm(), 4), absl::StrCat(step.tokens()),
                 Grouped(std::llround(step.tokens_per_second())), Number(step.step_seconds(), 3),
                 step.skipped() ? "skipped: not finite" : ""});
    }
  }
  return table.Text();
}

absl::StatusOr<int> Metrics(const Command& command, const MetricFlags& flags) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::QueryMetricsRequest request;
  request.set_job(flags.job);
  request.set_from_step(flags.from_step);
  request.set_to_step(flags.to_step);
  request.set_max_records(flags.max_records);
  SLIPWAY_ASSIGN_OR_RETURN(const v1::QueryMetricsResponse response,
                           connection->Call(&v1::MetricService::Stub::QueryMetrics, connection->metrics(), request));
  command.Emit(response, MetricTable(response), "");
  return kExitOk;
}

absl::StatusOr<int> Events(const Command& command, const std::string& job) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::ListJobEventsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  v1::ListJobEventsResponse all;
  do {
    SLIPWAY_ASSIGN_OR_RETURN(v1::ListJobEventsResponse page,
                             connection->Call(&v1::JobService::Stub::ListJobEvents, connection->jobs(), request));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  Table table({"TIME", "EVENT", "STATE", "STEP", "MESSAGE"});
  for (const v1::JobEvent& event : all.events()) {
    std::string message = event.message();
    if (event.has_cause()) absl::StrAppend(&message, message.empty() ? "" : " – ", CauseText(event.cause()));
    table.Add({TimeText(event.time()), event.type(), StateText(event.state()),
               event.step() > 0 ? absl::StrCat(event.step()) : "-", OneLine(message)});
  }
  command.Emit(all, table.Text(), "");
  return kExitOk;
}

void EmitJob(const Command& command, const v1::Job& job) {
  command.Emit(job, absl::StrCat(job.id(), " ", StateText(job.state()), "\n"), absl::StrCat(job.id(), "\n"));
}

// A verb: a request with a job and a request id, an answer with the job.
template <typename Request, typename Response>
absl::StatusOr<v1::Job> CallVerb(Connection& connection,
                                 grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                              Response*),
                                 const std::string& job, Request request = {}) {
  request.set_job(job);
  request.set_request_id(NewRequestId());
  SLIPWAY_ASSIGN_OR_RETURN(Response response, connection.Call(method, connection.jobs(), request));
  return std::move(*response.mutable_job());
}

absl::StatusOr<int> Resume(const Command& command, const std::string& job, const std::vector<std::string>& overrides) {
  engine::spec::SpecPatch patch = engine::spec::PatchFromOverrides(overrides);
  SLIPWAY_RETURN_IF_ERROR(engine::spec::FaultsToStatus(patch.faults, "--set"));
  engine::spec::SpecLocations from_flags;
  ResolvePaths(command.env().working_directory, command.env(), from_flags, &patch.patch);
  v1::ResumeJobRequest request;
  *request.mutable_spec_patch() = patch.patch;
  for (const std::string& path : patch.clear_paths) request.add_clear_paths(path);
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  SLIPWAY_ASSIGN_OR_RETURN(const v1::Job resumed,
                           CallVerb(*connection, &v1::JobService::Stub::ResumeJob, job, std::move(request)));
  EmitJob(command, resumed);
  return kExitOk;
}

// A verb whose only argument is the job.
template <typename Request, typename Response>
void AddVerb(CLI::App* jobs, Command* command, const std::string& name, const std::string& help,
             grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&, Response*)) {
  const auto job = std::make_shared<std::string>();
  CLI::App* verb = jobs->add_subcommand(name, help);
  verb->add_option("job", *job, "Id, or a name that only one job has")->required();
  command->Run(verb, [=]() -> absl::StatusOr<int> {
    SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command->Connect());
    SLIPWAY_ASSIGN_OR_RETURN(const v1::Job changed, CallVerb(*connection, method, *job));
    EmitJob(*command, changed);
    return kExitOk;
  });
}

void AddVerbs(CLI::App* jobs, Command* command) {
  using Stub = v1::JobService::Stub;
  AddVerb(jobs, command, "pause", "Save a checkpoint and give the slots back", &Stub::PauseJob);

  const auto job = std::make_shared<std::string>();
  const auto overrides = std::make_shared<std::vector<std::string>>();
  CLI::App* resume = jobs->add_subcommand("resume", "Go on from the last checkpoint, also with another layout");
  resume->add_option("job", *job, "Id or name")->required();
  resume->add_option("--set", *overrides, "section.key=value; null resets a field")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  command->Run(resume, [=] { return Resume(*command, *job, *overrides); });

  AddVerb(jobs, command, "cancel", "End a job for good; its checkpoints stay", &Stub::CancelJob);
  AddVerb(jobs, command, "hold", "Keep a queued job in its place and from starting", &Stub::HoldJob);
  AddVerb(jobs, command, "release", "Let a held job start when its turn comes", &Stub::ReleaseJob);
}

}  // namespace

void AddJobCommands(CLI::App* app, Command* command) {
  CLI::App* jobs = app->add_subcommand("jobs", "Submit, watch and steer jobs");
  jobs->require_subcommand(1);

  const auto submit_flags = std::make_shared<SubmitFlags>();
  CLI::App* submit = jobs->add_subcommand("submit", "Submit a job; prints its id");
  submit->add_option("-f,--file", submit_flags->file, "Job file in YAML or JSON; - reads standard input")
      ->required()
      ->type_name("FILE");
  submit->add_option("--set", submit_flags->overrides, "section.key=value on top of the file; null resets a field")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  CLI::Option* dry_run =
      submit->add_flag("--dry-run", submit_flags->dry_run, "Check everything and print the plan; submit nothing");
  submit->add_flag("--watch", submit_flags->watch, "Follow the job to its end")->excludes(dry_run);
  submit->add_option("--request-id", submit_flags->request_id, "Submitting again with the same id gives the same job")
      ->excludes(dry_run)
      ->type_name("ID");
  command->Run(submit, [=] { return Submit(*command, *submit_flags); });

  const auto list_flags = std::make_shared<ListFlags>();
  CLI::App* list = jobs->add_subcommand("list", "Jobs, newest first");
  list->add_option("--project", list_flags->project, "Only of this project")->type_name("NAME");
  list->add_option("--name", list_flags->name, "Only with this name")->type_name("NAME");
  list->add_option("--state", list_flags->states, "Only in this state; may be repeated")
      ->allow_extra_args(false)
      ->type_name("STATE");
  list->add_option("--limit", list_flags->limit, "At most so many")->check(WholeNumberIn(1, 1'000'000))->type_name("N");
  command->Run(list, [=] { return List(*command, *list_flags); });

  const auto job = std::make_shared<std::string>();
  const auto spec_only = std::make_shared<bool>(false);
  CLI::App* describe = jobs->add_subcommand("describe", "Everything about a job");
  describe->add_option("job", *job, "Id or name")->required();
  describe->add_flag("--spec", *spec_only, "Only its configuration, as a job file with every default");
  command->Run(describe, [=] { return Describe(*command, *job, *spec_only); });

  const auto metric_flags = std::make_shared<MetricFlags>();
  CLI::App* metrics = jobs->add_subcommand("metrics", "Stored metrics");
  metrics->add_option("job", metric_flags->job, "Id or name")->required();
  metrics->add_option("--from-step", metric_flags->from_step, "First step")->check(WholeNumberIn(0))->type_name("STEP");
  metrics->add_option("--to-step", metric_flags->to_step, "Last step [the newest]")
      ->check(WholeNumberIn(1))
      ->type_name("STEP");
  metrics->add_option("--max-records", metric_flags->max_records, "Thin out to so many")
      ->check(WholeNumberIn(1, 10000))
      ->type_name("N");
  command->Run(
      metrics, [=] { return Metrics(*command, *metric_flags); }, Outputs::kNoNames);

  CLI::App* events = jobs->add_subcommand("events", "What happened to a job");
  events->add_option("job", *job, "Id or name")->required();
  command->Run(
      events, [=] { return Events(*command, *job); }, Outputs::kNoNames);

  AddVerbs(jobs, command);
  AddJobPlanCommand(jobs, command);
  AddJobStreamCommands(jobs, command);
  AddJobLogCommand(jobs, command);
}

}  // namespace slipway::client
