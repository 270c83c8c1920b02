// jobs watch, wait, checkpoint: what follows a job over time.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/job_text.h"
#include "client/job_watch.h"
#include "client/live_view.h"
#include "common/flag_range.h"
#include "common/status_macros.h"

namespace slipway::client {
namespace {

constexpr absl::Duration kFrame = absl::Milliseconds(100);
// The last metrics of a job may arrive after the event that ends it.
constexpr absl::Duration kMetricsGrace = absl::Seconds(2);

void Show(const Command& command, bool terminal, LiveView* view, BlockPainter* painter) {
  const std::vector<std::string> lines = view->TakeLines();
  if (!command.is_table()) return;  // programs get the updates themselves
  if (terminal) {
    command.Print(painter->Paint(lines, view->Block(command.env().terminal_width())));
    return;
  }
  for (const std::string& line : lines) command.Print(absl::StrCat(line, "\n"));
}

// An update for programs; what only people care about, such as a lost connection, goes to stderr.
void EmitUpdate(const Command& command, const WatchUpdate& update) {
  const auto message = [&](const google::protobuf::Message& data) {
    return command.format() == OutputFormat::kYaml ? ToJsonWithPlainSpecs(data) : ToJson(data);
  };
  if (const auto* seen = std::get_if<JobSeen>(&update)) {
    command.EmitPart({{"job", message(seen->job)}});
  } else if (const auto* event = std::get_if<EventSeen>(&update)) {
    command.EmitPart({{"event", message(event->event)}, {"job", message(event->job)}});
  } else if (const auto* record = std::get_if<RecordSeen>(&update)) {
    command.EmitPart({{"record", message(record->record)}, {"dropped", record->dropped}});
  } else if (const auto* lost = std::get_if<ConnectionLost>(&update)) {
    command.Say(absl::StrCat("connection lost, trying again (the job goes on): ",
                             OneLine(std::string(lost->status.message()))));
  }
}

int ReportEnd(const Command& command, const v1::Job& job) {
  std::string line = absl::StrCat(job.id(), " ", StateText(job.state()));
  if (job.has_failure()) absl::StrAppend(&line, ": ", OneLine(CauseText(job.failure())));
  if (!job.export_dir().empty()) absl::StrAppend(&line, "; exported to ", OneLine(job.export_dir()));
  command.Say(line);
  return ExitCodeOf(job.state());
}

// True once the view has seen everything of a job that has ended, or has waited long enough for the rest.
bool IsOver(const LiveView& view, absl::Time* ended) {
  if (!view.has_job() || !IsFinal(view.job().state())) return false;
  if (*ended == absl::InfiniteFuture()) *ended = absl::Now();
  return view.last_step() >= view.job().progress().step() || absl::Now() - *ended > kMetricsGrace;
}

struct WaitFlags {
  std::string job;
  std::string wanted;
  double timeout_seconds = 0;
};

absl::StatusOr<int> Wait(const Command& command, const WaitFlags& flags) {
  std::optional<v1::JobState> wanted;
  if (!flags.wanted.empty()) {
    wanted = StateFromText(flags.wanted);
    if (!wanted) return absl::InvalidArgumentError(absl::StrCat("--for ", flags.wanted, ": no such state"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, flags.job));
  const absl::Time deadline =
      flags.timeout_seconds > 0 ? absl::Now() + absl::Seconds(flags.timeout_seconds) : absl::InfiniteFuture();
  LiveView view({});
  JobWatch watch(connection.get(), {.job_id = job.id(), .metrics = false});
  while (true) {
    const std::optional<WatchUpdate> update = watch.Next(kFrame);
    if (update) {
      if (const auto* failed = std::get_if<WatchFailed>(&*update)) return failed->status;
      view.Apply(*update);
    }
    const v1::JobState state = view.job().state();
    if (view.has_job() && (wanted ? state == *wanted : IsFinal(state))) {
      command.Emit(view.job(), absl::StrCat(job.id(), " ", StateText(state), "\n"), absl::StrCat(job.id(), "\n"));
      return wanted ? kExitOk : ExitCodeOf(state);
    }
    if (view.has_job() && IsFinal(state)) {
      command.Say(absl::StrCat(job.id(), " is ", StateText(state), " and will not be ", StateText(*wanted)));
      return state == v1::JOB_STATE_SUCCEEDED ? static_cast<int>(kExitConflict) : ExitCodeOf(state);
    }
    if (command.stopped()) return kExitInterrupted;
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(job.id(), " is still ", StateText(state), " after ", flags.timeout_seconds, " s"));
    }
  }
}

struct CheckpointFlags {
  std::string job;
  bool wait = false;
};

// What the last failed save said; empty when the last one succeeded.
std::string FailedSave(const v1::Job& job) {
  for (const v1::JobCondition& condition : job.conditions()) {
    if (condition.type() == "Saving" && !condition.status()) return condition.message();
  }
  return "";
}

absl::StatusOr<int> CheckpointNow(const Command& command, const CheckpointFlags& flags) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::CheckpointJobRequest request;
  request.set_job(flags.job);
  request.set_request_id(NewRequestId());
  SLIPWAY_ASSIGN_OR_RETURN(const v1::CheckpointJobResponse response,
                           connection->Call(&v1::JobService::Stub::CheckpointJob, connection->jobs(), request));
  if (!flags.wait) {
    command.Emit(response, absl::StrCat("checkpoint request ", response.request_number(), "\n"),
                 absl::StrCat(response.job().id(), "\n"));
    return kExitOk;
  }
  const std::string failed_before = FailedSave(response.job());
  while (!command.stopped()) {
    SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, response.job().id()));
    if (const std::string failed = FailedSave(job); !failed.empty() && failed != failed_before) {
      return absl::ResourceExhaustedError(absl::StrCat("the save failed: ", OneLine(failed)));
    }
    for (const v1::Checkpoint& checkpoint : job.checkpoints()) {
      if (checkpoint.request_number() < response.request_number()) continue;
      command.Emit(checkpoint, absl::StrCat(OneLine(checkpoint.path()), "\n"), absl::StrCat(checkpoint.path(), "\n"));
      return kExitOk;
    }
    if (job.state() != v1::JOB_STATE_RUNNING && job.state() != v1::JOB_STATE_RECOVERING &&
        job.state() != v1::JOB_STATE_STARTING) {
      return absl::FailedPreconditionError(
          absl::StrCat(job.id(), " is ", StateText(job.state()), " before a checkpoint answered the request"));
    }
    absl::SleepFor(absl::Milliseconds(300));
  }
  return kExitInterrupted;
}

}  // namespace

absl::StatusOr<int> WatchToEnd(const Command& command, Connection& connection, const v1::Job& job, int64_t from_step) {
  const bool terminal = command.env().out_is_terminal && command.is_table();
  const bool parts = command.format() == OutputFormat::kJson || command.format() == OutputFormat::kYaml;
  LiveView view({.terminal = terminal, .color = command.color(terminal)});
  view.Apply(JobSeen{job});
  BlockPainter painter;
  JobWatch watch(&connection, {.job_id = job.id(), .from_step = from_step});
  absl::Time ended = absl::InfiniteFuture();
  absl::Time drawn = absl::InfinitePast();
  while (true) {
    const std::optional<WatchUpdate> update = watch.Next(kFrame);
    if (update) {
      if (const auto* failed = std::get_if<WatchFailed>(&*update)) return failed->status;
      view.Apply(*update);
      if (parts) EmitUpdate(command, *update);
    }
    // After a restart events come with the job as it is now: what is still queued is shown as well.
    const bool over = !update && IsOver(view, &ended);
    if (over || !terminal || absl::Now() - drawn >= kFrame) {
      Show(command, terminal, &view, &painter);
      drawn = absl::Now();
    }
    if (over) return ReportEnd(command, view.job());
    if (command.stopped()) {
      Show(command, terminal, &view, &painter);
      if (!command.env().interrupted()) return kExitInterrupted;
      command.Say(absl::StrCat("detached; the job goes on. Watch it again with: slipway jobs watch ", job.id()));
      return kExitInterrupted;
    }
  }
}

void AddJobStreamCommands(CLI::App* jobs, Command* command) {
  struct WatchFlags {
    std::string job;
    int64_t from_step = -1;
  };
  const auto watch_flags = std::make_shared<WatchFlags>();
  CLI::App* watch = jobs->add_subcommand("watch", "Follow a job to its end; Ctrl-C leaves the job running");
  watch->add_option("job", watch_flags->job, "Id or name")->required();
  watch->add_option("--from-step", watch_flags->from_step, "Show metrics from this step on [the current one]")
      ->check(WholeNumberIn(0))
      ->type_name("STEP");
  command->Run(
      watch,
      [=]() -> absl::StatusOr<int> {
        SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command->Connect());
        SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, watch_flags->job));
        return WatchToEnd(*command, *connection, job,
                          watch_flags->from_step >= 0 ? watch_flags->from_step : job.progress().step());
      },
      Outputs::kNoNames);

  const auto wait_flags = std::make_shared<WaitFlags>();
  CLI::App* wait = jobs->add_subcommand("wait", "Wait for a job's end or for a state");
  wait->add_option("job", wait_flags->job, "Id or name")->required();
  wait->add_option("--for", wait_flags->wanted, "State to wait for, e.g. running [any end]")->type_name("STATE");
  wait->add_option("--timeout", wait_flags->timeout_seconds, "Give up after this time")
      ->check(NumberIn({.min = 0, .max = 1e9, .exclusive_min = true}))
      ->type_name("SECONDS");
  command->Run(wait, [=] { return Wait(*command, *wait_flags); });

  const auto checkpoint_flags = std::make_shared<CheckpointFlags>();
  CLI::App* checkpoint = jobs->add_subcommand("checkpoint", "Ask for a checkpoint as soon as possible");
  checkpoint->add_option("job", checkpoint_flags->job, "Id or name")->required();
  checkpoint->add_flag("--wait", checkpoint_flags->wait, "Wait until it is durable; prints its directory");
  command->Run(checkpoint, [=] { return CheckpointNow(*command, *checkpoint_flags); });
}

}  // namespace slipway::client
