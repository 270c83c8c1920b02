#include "absl/strings/str_cat.h"
#include "common/timestamp.h"
#include "server/core/transition.h"

namespace slipway::server::core {

void Transition::On(const CreateJob& event) {
  JobEntry& entry = state_.jobs[event.id];
  v1::Job& job = entry.job;
  job.set_id(event.id);
  job.set_name(event.spec.name());
  job.set_project(event.spec.project());
  *job.mutable_labels() = event.spec.labels();
  *job.mutable_spec() = event.spec;
  *job.mutable_create_time() = ToTimestamp(now_.wall);
  job.set_output_dir(event.output_dir);
  job.set_checkpoint_dir(event.checkpoint_dir);
  job.mutable_progress()->set_train_iters(event.spec.training().train_iters());
  entry.submitted_spec = event.submitted_spec;
  entry.submit_sequence = state_.next_sequence++;
  entry.nonce = event.nonce;
  SetState(entry, v1::JOB_STATE_QUEUED, "Queued", "");
  Emit(entry, "Submitted", absl::StrCat("submitted as \"", job.name(), "\""));
}

void Transition::On(const PauseJob& event) {
  JobEntry* entry = FindForVerb(event.id, event.etag);
  if (entry == nullptr) return;
  switch (entry->job.state()) {
    case v1::JOB_STATE_PAUSED:
      return;
    case v1::JOB_STATE_PAUSING:
      if (!entry->draining) return;
      entry->draining = false;
      SetState(*entry, v1::JOB_STATE_PAUSING, "PausedByUser", "saving a checkpoint");
      return Emit(*entry, "PauseRequested", "");
    case v1::JOB_STATE_QUEUED:
      DropPreflight(*entry);
      SetState(*entry, v1::JOB_STATE_PAUSED, "PausedByUser", "paused before it started");
      return Emit(*entry, "Paused", entry->job.state_message());
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      SetState(*entry, v1::JOB_STATE_PAUSING, "PausedByUser", "saving a checkpoint");
      AskToStop(*entry, absl::Seconds(entry->job.spec().fault_tolerance().pause_timeout_seconds()));
      return Emit(*entry, "PauseRequested", "");
    case v1::JOB_STATE_RECOVERING: {
      const v1::Attempt* attempt = LiveAttempt(*entry);
      if (attempt == nullptr) {
        entry->not_before = -absl::InfiniteDuration();
        SetState(*entry, v1::JOB_STATE_PAUSED, "PausedByUser", "paused between two attempts");
        return Emit(*entry, "Paused", entry->job.state_message());
      }
      SetState(*entry, v1::JOB_STATE_PAUSING, "PausedByUser", "ending the workers of the attempt that failed");
      return Emit(*entry, "PauseRequested", "");
    }
    default:
      return Refuse(*entry, "pause", "");
  }
}

void Transition::On(const ResumeJob& event) {
  JobEntry* entry = FindForVerb(event.id, event.etag);
  if (entry == nullptr) return;
  switch (entry->job.state()) {
    case v1::JOB_STATE_QUEUED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_RECOVERING:
      if (event.changed) Refuse(*entry, "resume with changes", "pause it first");
      return;
    case v1::JOB_STATE_PAUSED:
      break;
    case v1::JOB_STATE_PAUSING:
      return Refuse(*entry, "resume", "wait until it is PAUSED");
    default:
      return Refuse(*entry, "resume", "");
  }
  DropPreflight(*entry);
  if (event.changed) {
    *entry->job.mutable_spec() = event.spec;
    *entry->job.mutable_labels() = event.spec.labels();
    entry->job.mutable_progress()->set_train_iters(event.spec.training().train_iters());
  }
  entry->preflight_tries = 0;
  entry->restarts_without_progress = 0;
  entry->submit_sequence = state_.next_sequence++;
  SetState(*entry, v1::JOB_STATE_QUEUED, "Resumed", "");
  Emit(*entry, "Resumed", event.changes);
}

void Transition::On(const CancelJob& event) {
  JobEntry* entry = FindForVerb(event.id, event.etag);
  if (entry == nullptr) return;
  switch (entry->job.state()) {
    case v1::JOB_STATE_CANCELLED:
    case v1::JOB_STATE_CANCELLING:
      return;
    case v1::JOB_STATE_SUCCEEDED:
    case v1::JOB_STATE_FAILED:
      return Refuse(*entry, "cancel", "");
    default:
      break;
  }
  DropPreflight(*entry);
  if (LiveAttempt(*entry) == nullptr) {
    SetState(*entry, v1::JOB_STATE_CANCELLED, "CancelledByUser", "cancelled while nothing ran");
    return Emit(*entry, "Cancelled", entry->job.state_message());
  }
  SetState(*entry, v1::JOB_STATE_CANCELLING, "CancelledByUser", "ending the workers");
  StopNow(*entry);
  Emit(*entry, "CancelRequested", "");
  Evaluate(*entry);
}

void Transition::On(const HoldJob& event) {
  JobEntry* entry = FindForVerb(event.id, event.etag);
  if (entry == nullptr) return;
  if (entry->job.state() != v1::JOB_STATE_QUEUED) return Refuse(*entry, "hold", "only a queued job can be held");
  if (IsHeld(entry->job)) return;
  SetCondition(*entry, kHeldCondition, true, "HeldByUser", "");
  Emit(*entry, "Held", "");
}

void Transition::On(const ReleaseJob& event) {
  JobEntry* entry = FindForVerb(event.id, event.etag);
  if (entry == nullptr) return;
  if (IsFinal(entry->job.state())) return Refuse(*entry, "release", "");
  if (!IsHeld(entry->job)) return;
  SetCondition(*entry, kHeldCondition, false, "Released", "");
  Emit(*entry, "Released", "");
}

void Transition::On(const CheckpointJob& event) {
  JobEntry* entry = FindForVerb(event.id, "");
  if (entry == nullptr) return;
  if (entry->job.state() != v1::JOB_STATE_RUNNING && entry->job.state() != v1::JOB_STATE_STARTING) {
    return Refuse(*entry, "checkpoint", "only a running job can save");
  }
  entry->job.set_checkpoint_requests(entry->job.checkpoint_requests() + 1);
  effects_.checkpoint_request = entry->job.checkpoint_requests();
  TouchNodesOf(*entry);
  Emit(*entry, "CheckpointRequested", absl::StrCat("request ", effects_.checkpoint_request));
}

void Transition::On(const Drain& event) {
  state_.draining = true;
  const std::set<std::string> active = state_.active;
  for (const std::string& id : active) {
    JobEntry& entry = state_.jobs.at(id);
    const v1::JobState state = entry.job.state();
    if (LiveAttempt(entry) == nullptr) {
      DropPreflight(entry);
      Reindex(entry);
    } else if (state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING) {
      entry.draining = true;
      SetState(entry, v1::JOB_STATE_PAUSING, "Draining", "the server is shutting down: saving a checkpoint");
      AskToStop(entry, state_.options.drain_timeout);
      Emit(entry, "DrainRequested", "");
    }
    if (event.hurry && LiveAttempt(entry) != nullptr) {
      StopNow(entry);
      Evaluate(entry);
    }
  }
}

JobEntry* Transition::FindForVerb(const std::string& id, const std::string& etag) {
  JobEntry* entry = Find(id);
  if (entry == nullptr) {
    effects_.status = absl::NotFoundError(absl::StrCat("there is no job ", id));
    return nullptr;
  }
  if (!etag.empty() && etag != entry->job.etag()) {
    effects_.status =
        absl::AbortedError(absl::StrCat("job ", id, " has changed: its etag is ", entry->job.etag(), ", not ", etag));
    return nullptr;
  }
  return entry;
}

void Transition::Refuse(const JobEntry& entry, absl::string_view verb, absl::string_view hint) {
  std::string message =
      absl::StrCat("cannot ", verb, " job ", entry.job.id(), ": it is ", StateName(entry.job.state()));
  if (!hint.empty()) absl::StrAppend(&message, "; ", hint);
  effects_.status = absl::FailedPreconditionError(message);
}

void Transition::AskToStop(JobEntry& entry, absl::Duration timeout) {
  entry.stop_requested = entry.asked_to_stop = true;
  entry.deadline = now_.monotonic + timeout;
  TouchNodesOf(entry);
}

}  // namespace slipway::server::core
