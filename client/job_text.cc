#include "client/job_text.h"

#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/format.h"
#include "common/text.h"

namespace slipway::client {
namespace {

constexpr char kStatePrefix[] = "JOB_STATE_";

// The name of an enum value without its type; a number that this version does not know stays readable.
template <typename Enum>
std::string EnumText(Enum value, absl::string_view prefix) {
  const auto* found = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  if (found == nullptr) return absl::StrCat("STATE_", static_cast<int>(value));
  return std::string(absl::StripPrefix(found->name(), prefix));
}

class Lines {
 public:
  void Add(const std::string& name, const std::string& value) {
    if (!value.empty())
      absl::StrAppend(&text_, name, ":", std::string(name.size() < 15 ? 15 - name.size() : 1, ' '), value, "\n");
  }
  void Raw(const std::string& text) { text_ += text; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string ParallelismText(const v1::ParallelismSpec& sizes) {
  return absl::StrCat("dp", sizes.data_parallel_size(), " tp", sizes.tensor_model_parallel_size(), " pp",
                      sizes.pipeline_model_parallel_size(), " cp", sizes.context_parallel_size());
}

std::string PlacementText(const v1::Attempt& attempt) {
  std::map<std::string, int> ranks_by_node;
  for (const v1::RankPlacement& placement : attempt.placements()) ++ranks_by_node[placement.node_id()];
  return absl::StrJoin(ranks_by_node, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " on ", entry.first);
  });
}

std::string AttemptsText(const v1::Job& job, absl::Time now) {
  if (job.attempts().empty()) return "";
  Table table({"  EPOCH", "RANKS", "LAYOUT", "STARTED", "RESUMED FROM", "LAST STEP", "END"});
  for (const v1::Attempt& attempt : job.attempts()) {
    const std::string from = attempt.resumed() ? absl::StrCat("step ", attempt.resumed_from_step(), " (epoch ",
                                                              attempt.resumed_from_epoch(), ")")
                                               : "-";
    const std::string end = !attempt.has_end_time()   ? "running"
                            : attempt.has_end_cause() ? OneLine(CauseText(attempt.end_cause()))
                                                      : "as planned";
    table.Add({absl::StrCat("  ", attempt.epoch()), PlacementText(attempt), ParallelismText(attempt.parallelism()),
               AgeText(attempt.create_time(), now), from, absl::StrCat(attempt.last_step()), end});
  }
  return absl::StrCat("attempts:\n", table.Text());
}

std::string CheckpointsText(const v1::Job& job, absl::Time now) {
  if (job.checkpoints().empty()) return "";
  Table table({"  STEP", "EPOCH", "SIZE", "AGE", "PATH"});
  for (const v1::Checkpoint& checkpoint : job.checkpoints()) {
    table.Add({absl::StrCat("  ", checkpoint.step()), absl::StrCat(checkpoint.epoch()),
               FormatBytes(checkpoint.size_bytes()), AgeText(checkpoint.commit_time(), now),
               OneLine(checkpoint.path())});
  }
  return absl::StrCat("checkpoints:\n", table.Text());
}

}  // namespace

std::string StateText(v1::JobState state) { return EnumText(state, kStatePrefix); }

std::optional<v1::JobState> StateFromText(std::string_view text) {
  std::string name = absl::AsciiStrToUpper(absl::string_view(text.data(), text.size()));
  if (!absl::StartsWith(name, kStatePrefix)) name = absl::StrCat(kStatePrefix, name);
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  if (!v1::JobState_Parse(name, &state) || state == v1::JOB_STATE_UNSPECIFIED) return std::nullopt;
  return state;
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

std::string CauseText(const v1::Cause& cause) {
  std::string text;
  if (cause.has_rank()) absl::StrAppend(&text, "rank ", cause.rank());
  if (!cause.node_id().empty()) absl::StrAppend(&text, text.empty() ? "" : " on ", cause.node_id());
  if (!text.empty()) absl::StrAppend(&text, ": ");
  if (cause.has_signal()) absl::StrAppend(&text, "signal ", cause.signal(), ": ");
  if (cause.has_exit_code()) absl::StrAppend(&text, "exit code ", cause.exit_code(), ": ");
  absl::StrAppend(&text, cause.message(), " (", EnumText(cause.cause_class(), "CAUSE_CLASS_"));
  if (!cause.phase().empty()) absl::StrAppend(&text, ", in ", cause.phase());
  if (cause.has_step()) absl::StrAppend(&text, ", step ", cause.step());
  if (!cause.collective().empty()) absl::StrAppend(&text, ", last collective ", cause.collective());
  return absl::StrCat(text, ")");
}

std::string ProgressText(const v1::JobProgress& progress) {
  if (progress.train_iters() == 0) return "-";
  return absl::StrCat(progress.step(), "/", progress.train_iters());
}

std::string StepLine(const v1::StepMetrics& step, int64_t train_iters) {
  std::string text = absl::StrCat("step ", step.step());
  if (train_iters > 0) absl::StrAppend(&text, "/", train_iters);
  absl::StrAppend(&text, "  loss ", Number(step.loss(), 6), "  lr ", Number(step.learning_rate(), 4), "  grad_norm ",
                  Number(step.grad_norm(), 4), "  ", Grouped(std::llround(step.tokens_per_second())), " tok/s  ",
                  Number(step.step_seconds(), 3), " s/step");
  if (step.has_mfu()) absl::StrAppend(&text, absl::StrFormat("  mfu %.1f%%", 100 * step.mfu()));
  if (step.has_routing()) absl::StrAppend(&text, absl::StrFormat("  max load %.2f", step.routing().max_load()));
  if (step.skipped()) absl::StrAppend(&text, "  SKIPPED (not finite; ", step.skipped_total(), " so far)");
  return text;
}

std::string EvalLine(const v1::EvalMetrics& eval) {
  return absl::StrCat("eval at step ", eval.step(), "  loss ", Number(eval.loss(), 6), "  perplexity ",
                      Number(eval.perplexity(), 5), "  ", Grouped(eval.loss_tokens()), " tokens  ",
                      Number(eval.seconds(), 3), " s");
}

std::string EventLine(const v1::JobEvent& event) {
  std::string text =
      absl::StrCat(absl::FormatTime("%H:%M:%S", ToTime(event.time()), absl::LocalTimeZone()), " ", event.type());
  if (!event.message().empty()) absl::StrAppend(&text, ": ", event.message());
  if (event.has_cause() && !absl::StrContains(event.message(), event.cause().message())) {
    absl::StrAppend(&text, " – ", CauseText(event.cause()));
  }
  return OneLine(text);
}

std::string DescribeJob(const v1::Job& job, absl::Time now) {
  Lines lines;
  lines.Add("job", job.id());
  lines.Add("name", OneLine(job.name()));
  lines.Add("project", OneLine(job.project()));
  const std::map<std::string, std::string> labels(job.labels().begin(), job.labels().end());
  lines.Add("labels", OneLine(absl::StrJoin(labels, ", ", absl::PairFormatter("="))));
  lines.Add("state", absl::StrCat(StateText(job.state()),
                                  job.state_reason().empty() ? "" : absl::StrCat(" (", job.state_reason(), ")")));
  lines.Add("message", OneLine(job.state_message()));
  lines.Add("progress", ProgressText(job.progress()));
  if (job.progress().has_last_step_metrics())
    lines.Add("last step", StepLine(job.progress().last_step_metrics(), job.progress().train_iters()));
  if (job.progress().has_last_eval_metrics()) lines.Add("last eval", EvalLine(job.progress().last_eval_metrics()));
  if (job.progress().eta_seconds() > 0 && !IsFinal(job.state()))
    lines.Add("eta", FormatElapsed(absl::Seconds(job.progress().eta_seconds())));
  if (job.has_failure()) lines.Add("failure", OneLine(CauseText(job.failure())));
  lines.Add("created", TimeText(job.create_time()));
  if (job.has_start_time()) lines.Add("started", TimeText(job.start_time()));
  if (job.has_end_time()) lines.Add("ended", TimeText(job.end_time()));
  if (job.restarts() > 0) lines.Add("restarts", absl::StrCat(job.restarts()));
  lines.Add("layout", ParallelismText(job.spec().parallelism()));
  lines.Add("output", OneLine(job.output_dir()));
  lines.Add("checkpoint dir", OneLine(job.checkpoint_dir()));
  lines.Add("exported", OneLine(job.export_dir()));
  for (const v1::JobCondition& condition : job.conditions()) {
    lines.Add("condition",
              OneLine(absl::StrCat(condition.type(), "=", condition.status() ? "true" : "false", " ",
                                   condition.reason(), condition.message().empty() ? "" : ": ", condition.message())));
  }
  lines.Raw(AttemptsText(job, now));
  lines.Raw(CheckpointsText(job, now));
  return lines.Take();
}

std::string SlotText(const v1::Slot& slot) {
  const std::string kind = slot.kind() == v1::DEVICE_KIND_CUDA ? "cuda" : "cpu";
  const std::string size = slot.memory_bytes() > 0 ? FormatBytes(slot.memory_bytes())
                           : slot.threads() > 0
                               ? absl::StrCat(slot.threads(), slot.threads() == 1 ? " thread" : " threads")
                               : "";
  return absl::StrCat(kind, ":", slot.index(), slot.device_name().empty() ? "" : absl::StrCat(" ", slot.device_name()),
                      size.empty() ? "" : absl::StrCat(" (", size, ")"));
}

}  // namespace slipway::client
