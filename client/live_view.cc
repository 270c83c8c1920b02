#include "client/live_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/format.h"
#include "client/job_text.h"
#include "common/text.h"

namespace slipway::client {
namespace {

// Cuts to `width` characters without cutting one in two. Escape sequences are added afterwards.
std::string Fit(const std::string& text, int width) {
  if (DisplayWidth(text) <= static_cast<size_t>(width)) return text;
  std::string out;
  int shown = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts = (text[i] & 0xC0) != 0x80;
    if (starts && ++shown >= width) break;
    out.push_back(text[i]);
  }
  return absl::StrCat(out, "…");
}

}  // namespace

void LiveView::Apply(const WatchUpdate& update) {
  if (const auto* seen = std::get_if<JobSeen>(&update)) {
    SetJob(seen->job);
  } else if (const auto* event = std::get_if<EventSeen>(&update)) {
    lines_.push_back(EventLine(event->event));
    SetJob(event->job);
  } else if (const auto* record = std::get_if<RecordSeen>(&update)) {
    if (record->dropped > 0) lines_.push_back(absl::StrCat("(", record->dropped, " records were not received)"));
    if (record->record.has_step()) AddStep(record->record.step());
    if (record->record.has_eval()) {
      last_eval_ = record->record.eval();
      lines_.push_back(EvalLine(*last_eval_));
    }
  } else if (const auto* lost = std::get_if<ConnectionLost>(&update)) {
    lines_.push_back(absl::StrCat("connection lost, trying again (the job goes on): ",
                                  OneLine(std::string(lost->status.message()))));
    connected_ = false;
  } else if (std::holds_alternative<ConnectionBack>(update)) {
    if (!connected_) lines_.push_back("connected again");
    connected_ = true;
  }
}

void LiveView::SetJob(const v1::Job& job) {
  if (job.id().empty()) return;
  const bool entered = !has_job() || job_.state() != job.state() || job_.state_reason() != job.state_reason();
  job_ = job;
  if (!options_.terminal && entered) {
    lines_.push_back(absl::StrCat(job.id(), " ", StateText(job.state()),
                                  job.state_reason().empty() ? "" : absl::StrCat(" ", job.state_reason()),
                                  job.state_message().empty() ? "" : absl::StrCat(": ", OneLine(job.state_message()))));
  }
}

void LiveView::AddStep(const v1::StepMetrics& step) {
  // A recovery goes back to the checkpoint: its first steps say nothing about the old pace.
  const bool follows = last_step_ && step.step() > last_step_->step();
  step_seconds_ = follows && step_seconds_ > 0 ? 0.9 * step_seconds_ + 0.1 * step.step_seconds() : step.step_seconds();
  last_step_ = step;
  if (!options_.terminal) {
    lines_.push_back(StepLine(step, job_.progress().train_iters()));
  } else if (step.skipped()) {
    lines_.push_back(absl::StrCat("step ", step.step(), " skipped: loss or gradient not finite (", step.skipped_total(),
                                  " so far)"));
  }
}

std::vector<std::string> LiveView::TakeLines() { return std::exchange(lines_, {}); }

std::optional<absl::Duration> LiveView::TimeLeft() const {
  const int64_t total = job_.progress().train_iters();
  if (!last_step_ || step_seconds_ <= 0 || job_.state() != v1::JOB_STATE_RUNNING || total <= last_step_->step())
    return std::nullopt;
  return absl::Seconds(static_cast<double>(total - last_step_->step()) * step_seconds_);
}

std::string LiveView::BarLine(int width) const {
  const int64_t total = job_.progress().train_iters();
  const int64_t step = std::max(last_step(), job_.progress().step());
  const double share = total > 0 ? static_cast<double>(step) / static_cast<double>(total) : 0;
  const std::string left = absl::StrCat("step ", Grouped(step), "/", Grouped(total), " ");
  std::string right = absl::StrFormat(" %5.1f%%", 100 * share);
  if (const auto time_left = TimeLeft()) absl::StrAppend(&right, "  eta ", FormatElapsed(*time_left));
  const int bar = std::clamp(width - static_cast<int>(left.size() + right.size()) - 2, 4, 40);
  return absl::StrCat(left, ProgressBar(share, bar), right);
}

std::string LiveView::Colored(const std::string& text, v1::JobState state) const {
  if (!options_.color) return text;
  const char* code = state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_SUCCEEDED   ? "32"
                     : state == v1::JOB_STATE_FAILED                                      ? "31"
                     : state == v1::JOB_STATE_RECOVERING || state == v1::JOB_STATE_PAUSED ? "33"
                                                                                          : "36";
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

std::vector<std::string> LiveView::Block(int width) const {
  if (!options_.terminal || !has_job()) return {};
  width = std::max(width, 20);
  std::vector<std::string> block;
  block.push_back(Colored(Fit(absl::StrCat(job_.id(), "  ", OneLine(job_.name()), "  ", StateText(job_.state()),
                                           job_.state_reason().empty() ? "" : absl::StrCat("  ", job_.state_reason()),
                                           connected_ ? "" : "  (no connection)"),
                              width),
                          job_.state()));
  if (!job_.state_message().empty()) block.push_back(Fit(OneLine(job_.state_message()), width));
  block.push_back(Fit(BarLine(width), width));
  if (last_step_) {
    block.push_back(Fit(
        absl::StrCat("loss ", Number(last_step_->loss(), 6), "   lr ", Number(last_step_->learning_rate(), 4),
                     "   grad norm ", Number(last_step_->grad_norm(), 4),
                     last_step_->skipped_total() > 0 ? absl::StrCat("   skipped ", last_step_->skipped_total()) : ""),
        width));
    block.push_back(
        Fit(absl::StrCat(Grouped(std::llround(last_step_->tokens_per_second())), " tok/s   ",
                         Number(last_step_->step_seconds(), 3), " s/step",
                         last_step_->has_mfu() ? absl::StrFormat("   MFU %.1f%%", 100 * last_step_->mfu()) : ""),
            width));
  }
  if (last_eval_) {
    block.push_back(Fit(absl::StrCat("eval loss ", Number(last_eval_->loss(), 6), "   perplexity ",
                                     Number(last_eval_->perplexity(), 5), "   at step ", last_eval_->step()),
                        width));
  }
  return block;
}

std::string BlockPainter::Paint(const std::vector<std::string>& lines_above, const std::vector<std::string>& block) {
  std::string text;
  if (drawn_ > 0) absl::StrAppend(&text, "\x1b[", drawn_, "A");
  absl::StrAppend(&text, "\r\x1b[J");
  for (const std::string& line : lines_above) absl::StrAppend(&text, line, "\n");
  for (const std::string& line : block) absl::StrAppend(&text, line, "\n");
  drawn_ = block.size();
  return text;
}

std::string ProgressBar(double share, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  std::string bar = "[";
  for (int i = 0; i < width; ++i) bar += i < full ? "█" : "─";
  return bar + "]";
}

}  // namespace slipway::client
