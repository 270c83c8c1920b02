// The life of an attempt: start, ready, end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/timestamp.h"
#include "server/core/budget.h"
#include "server/core/transition.h"

namespace slipway::server::core {
namespace {

constexpr int kMaxSecondaryCauses = 64;

std::string AtStep(const JobEntry& entry) {
  const int64_t step = entry.job.progress().last_checkpoint_step();
  return step > 0 ? absl::StrCat("at step ", step) : "at the beginning (no checkpoint yet)";
}

bool LastStepIsDurable(const v1::Job& job) {
  return std::any_of(job.checkpoints().begin(), job.checkpoints().end(), [&](const v1::Checkpoint& checkpoint) {
    return checkpoint.step() == job.spec().training().train_iters();
  });
}

bool AllExited(const JobEntry& entry) {
  return !entry.ranks.empty() && std::all_of(entry.ranks.begin(), entry.ranks.end(), [](const RankView& rank) {
    return rank.observed.state() == v1::RANK_STATE_EXITED;
  });
}

}  // namespace

void Transition::StartAttempt(JobEntry& entry, const std::vector<v1::RankPlacement>& placements) {
  const bool first = entry.job.attempts_size() == 0;
  v1::Attempt& attempt = *entry.job.add_attempts();
  attempt.set_epoch(entry.next_epoch++);
  attempt.set_world_size(static_cast<int>(placements.size()));
  attempt.mutable_placements()->Assign(placements.begin(), placements.end());
  *attempt.mutable_parallelism() = entry.job.spec().parallelism();
  *attempt.mutable_create_time() = ToTimestamp(now_.wall);
  if (first) {
    *entry.job.mutable_start_time() = attempt.create_time();
    effects_.queue_waits.push_back({entry.job.id(), now_.wall - FromTimestamp(entry.job.create_time())});
  }
  entry.ranks.assign(placements.size(), RankView{});
  entry.rendezvous_address.clear();
  entry.stop_requested = entry.stopping = entry.draining = entry.asked_to_stop = false;
  entry.exit_deadline = absl::InfiniteDuration();
  entry.not_before = -absl::InfiniteDuration();
  entry.deadline = now_.monotonic + absl::Seconds(entry.job.spec().fault_tolerance().start_timeout_seconds());
  SetState(entry, v1::JOB_STATE_STARTING, "Starting",
           absl::StrCat("attempt ", attempt.epoch(), ": starting ", attempt.world_size(), " ranks"));
  TouchNodesOf(entry);
  Emit(entry, "AttemptStarted", entry.job.state_message());
}

void Transition::Evaluate(JobEntry& entry) {
  v1::Attempt* attempt = LiveAttempt(entry);
  if (attempt == nullptr) return;
  EvaluateReady(entry, *attempt);
  EvaluateExits(entry, *attempt);
  if ((entry.stopping && AllGone(entry, *attempt)) || AllExited(entry)) EndAttempt(entry, *attempt);
}

// What the attempt saved itself does not count: its first checkpoints may come together with the news that it is ready.
const v1::Checkpoint* Transition::ForgottenCheckpoint(const JobEntry& entry, const v1::Attempt& attempt) {
  if (entry.ranks[0].observed.resumed()) return nullptr;
  const auto& known = entry.job.checkpoints();
  const auto it = std::find_if(known.rbegin(), known.rend(),
                               [&](const v1::Checkpoint& checkpoint) { return checkpoint.epoch() != attempt.epoch(); });
  return it == known.rend() ? nullptr : &*it;
}

void Transition::EvaluateReady(JobEntry& entry, v1::Attempt& attempt) {
  if (attempt.has_ready_time() || entry.stopping) return;
  const v1::ObservedRank& first = entry.ranks[0].observed;
  for (const RankView& rank : entry.ranks) {
    // Only a rank that was ready may leave as planned.
    const bool ready =
        rank.observed.state() == v1::RANK_STATE_READY || rank.observed.state() == v1::RANK_STATE_RUNNING ||
        (rank.observed.state() == v1::RANK_STATE_EXITED && rank.observed.outcome() != v1::RANK_OUTCOME_FAULT &&
         rank.observed.outcome() != v1::RANK_OUTCOME_UNSPECIFIED);
    if (!ready) return;
  }
  for (const RankView& rank : entry.ranks) {
    if (rank.observed.start_step() == first.start_step() && rank.observed.spec_hash() == first.spec_hash()) continue;
    v1::Cause cause;
    cause.set_cause_class(v1::CAUSE_CLASS_INTERNAL);
    cause.set_rank(rank.observed.rank());
    cause.set_message(absl::StrCat("the ranks disagree on where they start: rank 0 at step ", first.start_step(),
                                   " with spec ", first.spec_hash(), ", rank ", rank.observed.rank(), " at step ",
                                   rank.observed.start_step(), " with spec ", rank.observed.spec_hash()));
    return TakeFault(entry, attempt, std::move(cause));
  }
  // Never throw away what was durable without a word.
  if (const v1::Checkpoint* newest = ForgottenCheckpoint(entry, attempt); newest != nullptr) {
    v1::Cause cause;
    cause.set_cause_class(v1::CAUSE_CLASS_STORAGE);
    cause.set_rank(0);
    cause.set_phase("load");
    cause.set_message(absl::StrCat("the ranks would start from the beginning although the checkpoint of step ",
                                   newest->step(), " was durable: nothing usable at ", newest->path()));
    return TakeFault(entry, attempt, std::move(cause));
  }
  *attempt.mutable_ready_time() = ToTimestamp(now_.wall);
  AddLineage(entry, attempt);
  const std::string message =
      attempt.resumed() ? absl::StrCat("attempt ", attempt.epoch(), " goes on after step ", attempt.resumed_from_step(),
                                       " of epoch ", attempt.resumed_from_epoch())
                        : absl::StrCat("attempt ", attempt.epoch(), " starts from the beginning");
  if (entry.job.state() == v1::JOB_STATE_STARTING) {
    entry.deadline = absl::InfiniteDuration();
    SetState(entry, v1::JOB_STATE_RUNNING, "Running", message);
  }
  Emit(entry, "Ready", message);
}

void Transition::EvaluateExits(JobEntry& entry, v1::Attempt& attempt) {
  std::vector<v1::Cause> faults;
  for (RankView& rank : entry.ranks) {
    if (rank.handled || rank.observed.state() != v1::RANK_STATE_EXITED) continue;
    rank.handled = true;
    const v1::RankOutcome outcome = rank.observed.outcome();
    // Rank 0 reports checkpoints before it leaves. A new attempt says again what lies on the disk.
    const bool nothing_to_show = rank.observed.rank() == 0 && !LastStepIsDurable(entry.job);
    if (outcome == v1::RANK_OUTCOME_COMPLETED && !nothing_to_show) {
      entry.exit_deadline = std::min(entry.exit_deadline, now_.monotonic + state_.options.exit_timeout);
      continue;
    }
    if (outcome == v1::RANK_OUTCOME_STOPPED && (entry.asked_to_stop || entry.stop_requested || entry.stopping)) {
      entry.exit_deadline = std::min(entry.exit_deadline, now_.monotonic + state_.options.exit_timeout);
      continue;
    }
    v1::Cause cause = rank.observed.cause();
    if (outcome == v1::RANK_OUTCOME_COMPLETED) {
      cause.set_cause_class(v1::CAUSE_CLASS_STORAGE);
      cause.set_message(absl::StrCat("the ranks are done, but no durable checkpoint of step ",
                                     entry.job.spec().training().train_iters(), " was reported"));
    } else if (outcome == v1::RANK_OUTCOME_STOPPED) {
      cause.set_cause_class(v1::CAUSE_CLASS_OPERATOR);
      if (cause.message().empty()) cause.set_message("the worker was told to stop by something other than this job");
    } else if (cause.cause_class() == v1::CAUSE_CLASS_UNSPECIFIED) {
      cause.set_cause_class(v1::CAUSE_CLASS_CRASH);
      if (cause.message().empty()) cause.set_message("the worker ended without a word");
    }
    cause.set_rank(rank.observed.rank());
    if (cause.phase().empty()) cause.set_phase(rank.observed.phase());
    if (!cause.has_step()) cause.set_step(rank.observed.step());
    if (!cause.has_time()) *cause.mutable_time() = ToTimestamp(now_.wall);
    faults.push_back(std::move(cause));
  }
  // What came first comes first; those that only noticed it come last.
  std::stable_sort(faults.begin(), faults.end(), [](const v1::Cause& a, const v1::Cause& b) {
    if (IsSecondary(a) != IsSecondary(b)) return IsSecondary(b);
    return FromTimestamp(a.time()) < FromTimestamp(b.time());
  });
  for (v1::Cause& cause : faults) TakeFault(entry, attempt, std::move(cause));
}

void Transition::TakeFault(JobEntry& entry, v1::Attempt& attempt, v1::Cause cause) {
  if (!cause.has_time()) *cause.mutable_time() = ToTimestamp(now_.wall);
  if (attempt.has_end_cause()) {
    // The real cause may come in after the faults that it led to.
    if (IsSecondary(attempt.end_cause()) && !IsSecondary(cause)) std::swap(cause, *attempt.mutable_end_cause());
    if (attempt.secondary_causes_size() < kMaxSecondaryCauses) *attempt.add_secondary_causes() = std::move(cause);
    effects_.jobs.insert(entry.job.id());
    return;
  }
  if (entry.stopping) return;  // we are ending it: its ranks' last words mean nothing
  *attempt.mutable_end_cause() = cause;
  const std::string text = CauseText(cause);
  const v1::JobState state = entry.job.state();
  if (state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING) {
    SetState(entry, v1::JOB_STATE_RECOVERING, "Fault", text);
  } else if (state == v1::JOB_STATE_PAUSING) {
    entry.job.set_state_message(absl::StrCat("a fault came before the checkpoint was durable: ", text));
  }
  StopNow(entry);
  Emit(entry, "Fault", text, &cause);
}

void Transition::StopNow(JobEntry& entry) {
  if (entry.stopping) return;
  entry.stopping = true;
  entry.deadline = absl::InfiniteDuration();
  entry.exit_deadline = absl::InfiniteDuration();
  TouchNodesOf(entry);
  effects_.jobs.insert(entry.job.id());
}

bool Transition::AllGone(const JobEntry& entry, const v1::Attempt& attempt) const {
  return std::all_of(attempt.placements().begin(), attempt.placements().end(),
                     [&](const v1::RankPlacement& p) { return NodeIsClear(entry, attempt, p.node_id()); });
}

bool Transition::NodeIsClear(const JobEntry& entry, const v1::Attempt& attempt, const std::string& node_id) const {
  const auto it = state_.nodes.find(node_id);
  if (it == state_.nodes.end() || it->second.node.state() == v1::NODE_STATE_LOST) return true;
  const NodeEntry& node = it->second;
  const bool exited =
      std::all_of(attempt.placements().begin(), attempt.placements().end(), [&](const v1::RankPlacement& placement) {
        return placement.node_id() != node_id ||
               entry.ranks[static_cast<size_t>(placement.rank())].observed.state() == v1::RANK_STATE_EXITED;
      });
  if (exited) return true;
  // It has read that nothing of this attempt may run, and knows of nothing.
  return node.node.state() == v1::NODE_STATE_CONNECTED && node.reported &&
         node.applied_revision >= node.desired_revision && !node.present.contains({entry.job.id(), attempt.epoch()});
}

void Transition::EndAttempt(JobEntry& entry, v1::Attempt& attempt) {
  const bool completed = !attempt.has_end_cause() && entry.ranks[0].observed.outcome() == v1::RANK_OUTCOME_COMPLETED;
  for (const RankView& rank : entry.ranks) {
    attempt.set_last_step(std::max(attempt.last_step(), rank.observed.step()));
  }
  const bool progressed = attempt.last_step() > entry.best_step;
  entry.best_step = std::max(entry.best_step, attempt.last_step());
  TouchNodesOf(entry);  // releases the assignment
  *attempt.mutable_end_time() = ToTimestamp(now_.wall);
  entry.ranks.clear();
  entry.rendezvous_address.clear();
  entry.deadline = entry.exit_deadline = absl::InfiniteDuration();
  const bool draining = entry.draining;
  entry.stop_requested = entry.stopping = entry.draining = false;

  switch (entry.job.state()) {
    case v1::JOB_STATE_CANCELLING:
      SetState(entry, v1::JOB_STATE_CANCELLED, "CancelledByUser",
               entry.job.checkpoints_size() > 0 ? absl::StrCat("cancelled; the last checkpoint is of step ",
                                                               entry.job.progress().last_checkpoint_step())
                                                : "cancelled; there is no checkpoint");
      return Emit(entry, "Cancelled", entry.job.state_message());
    case v1::JOB_STATE_RECOVERING: {
      const Verdict verdict = ChargeRestart(entry, attempt.end_cause(), progressed);
      if (!verdict.restart) return Fail(entry, attempt.end_cause(), verdict.reason, verdict.message);
      return Recover(entry, attempt);
    }
    default:
      break;
  }
  if (completed) return Succeed(entry);
  if (draining) {
    SetState(entry, v1::JOB_STATE_QUEUED, "Drained",
             absl::StrCat("stopped for a shutdown of the server; goes on ", AtStep(entry)));
    return Emit(entry, "Drained", entry.job.state_message());
  }
  BecomePaused(entry, attempt);
}

void Transition::Recover(JobEntry& entry, const v1::Attempt& attempt) {
  effects_.restarts.push_back(attempt.end_cause().cause_class());
  entry.job.set_restarts(entry.job.restarts() + 1);
  // The first restart is at once; those that follow without progress wait 1, 2, 4, … seconds.
  const int again = std::min(entry.restarts_without_progress - 1, 16);
  const absl::Duration backoff =
      again <= 0 ? absl::ZeroDuration() : std::min(absl::Seconds(1 << (again - 1)), state_.options.max_backoff);
  entry.not_before = now_.monotonic + backoff;
  entry.job.set_state_message(absl::StrCat("restarting ", AtStep(entry), " after ", CauseText(attempt.end_cause())));
  Emit(entry, "WorkersGone", entry.job.state_message());
}

void Transition::BecomePaused(JobEntry& entry, const v1::Attempt& attempt) {
  std::string message = absl::StrCat("paused ", AtStep(entry));
  if (attempt.has_end_cause()) {
    absl::StrAppend(&message, "; a fault ended the attempt while it paused: ", CauseText(attempt.end_cause()));
  }
  SetState(entry, v1::JOB_STATE_PAUSED, "PausedByUser", message);
  Emit(entry, "Paused", message);
}

void Transition::Succeed(JobEntry& entry) {
  v1::JobProgress& progress = *entry.job.mutable_progress();
  progress.set_step(std::max(progress.step(), entry.best_step));
  progress.set_eta_seconds(0);
  if (entry.job.spec().checkpoint().export_hf()) entry.job.set_export_dir(absl::StrCat(entry.job.output_dir(), "/hf"));
  SetState(entry, v1::JOB_STATE_SUCCEEDED, "Completed", absl::StrCat("all ", progress.train_iters(), " steps done"));
  Emit(entry, "Succeeded", entry.job.state_message());
}

void Transition::Fail(JobEntry& entry, const v1::Cause& cause, absl::string_view reason, absl::string_view message) {
  *entry.job.mutable_failure() = cause;
  SetState(entry, v1::JOB_STATE_FAILED, reason, message);
  Emit(entry, "Failed", message, &cause);
}

}  // namespace slipway::server::core
