#include "server/store/job_record.h"

#include "absl/strings/str_cat.h"

namespace slipway::server::store {

storage::v1::JobRecord ToRecord(const core::JobEntry& entry) {
  storage::v1::JobRecord record;
  record.set_format_version(kFormatVersion);
  *record.mutable_job() = entry.job;
  *record.mutable_submitted_spec() = entry.submitted_spec;
  record.set_submit_sequence(entry.submit_sequence);
  record.set_next_epoch(entry.next_epoch);
  record.set_nonce(entry.nonce);
  record.set_preflight_done(entry.preflight == core::Preflight::kDone);
  record.set_stop_requested(entry.stop_requested);
  record.set_stopping(entry.stopping);
  record.set_draining(entry.draining);
  for (const auto& [cause, count] : entry.restarts_by_cause) (*record.mutable_restarts_by_cause())[cause] = count;
  record.set_restarts_without_progress(entry.restarts_without_progress);
  record.set_best_step(entry.best_step);
  *record.mutable_failed_save() = entry.failed_save;
  return record;
}

absl::StatusOr<core::JobEntry> FromRecord(const storage::v1::JobRecord& record) {
  if (record.format_version() > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat("job record of format version ", record.format_version(),
                                                      "; this slipwayd reads up to ", kFormatVersion));
  }
  if (record.format_version() < 1 || record.job().id().empty()) {
    return absl::DataLossError("job record without a version or an id");
  }
  if (!v1::JobState_IsValid(record.job().state()) || record.job().state() == v1::JOB_STATE_UNSPECIFIED) {
    return absl::DataLossError(
        absl::StrCat("job ", record.job().id(), " has the unknown state ", static_cast<int>(record.job().state())));
  }
  for (const v1::Attempt& attempt : record.job().attempts()) {
    const bool whole = attempt.placements_size() == attempt.world_size() && attempt.world_size() > 0;
    if (!whole) return absl::DataLossError(absl::StrCat("job ", record.job().id(), " has an attempt without ranks"));
  }
  core::JobEntry entry;
  entry.job = record.job();
  entry.submitted_spec = record.submitted_spec();
  entry.submit_sequence = record.submit_sequence();
  entry.next_epoch = record.next_epoch();
  entry.nonce = record.nonce();
  entry.preflight = record.preflight_done() ? core::Preflight::kDone : core::Preflight::kNeeded;
  entry.stop_requested = record.stop_requested();
  entry.stopping = record.stopping();
  entry.draining = record.draining();
  for (const auto& [cause, count] : record.restarts_by_cause()) entry.restarts_by_cause[cause] = count;
  entry.restarts_without_progress = record.restarts_without_progress();
  entry.best_step = record.best_step();
  entry.failed_save = record.failed_save();
  return entry;
}

}  // namespace slipway::server::store
