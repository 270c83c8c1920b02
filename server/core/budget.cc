#include "server/core/budget.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace slipway::server::core {

bool IsRetryable(v1::CauseClass cause_class) {
  return cause_class != v1::CAUSE_CLASS_USER_ERROR && cause_class != v1::CAUSE_CLASS_NUMERIC &&
         cause_class != v1::CAUSE_CLASS_DATA;
}

bool IsInfrastructure(v1::CauseClass cause_class) {
  switch (cause_class) {
    case v1::CAUSE_CLASS_STORAGE:
    case v1::CAUSE_CLASS_NETWORK:
    case v1::CAUSE_CLASS_GPU_HARDWARE:
    case v1::CAUSE_CLASS_NODE_LOST:
    case v1::CAUSE_CLASS_HANG:
    case v1::CAUSE_CLASS_PROCESS_KILLED:
    case v1::CAUSE_CLASS_OPERATOR:
      return true;
    default:
      return false;
  }
}

bool IsSecondary(const v1::Cause& cause) {
  if (cause.secondary()) return true;
  for (const char* sign : {"closed by peer", "reset by peer", "Broken pipe", "Connection refused"}) {
    if (absl::StrContains(cause.message(), sign)) return true;
  }
  return false;
}

Verdict ChargeRestart(JobEntry& entry, const v1::Cause& cause, bool progressed) {
  const v1::FaultToleranceSpec& limits = entry.job.spec().fault_tolerance();
  const v1::CauseClass cause_class = cause.cause_class();
  if (!IsRetryable(cause_class)) {
    return {.reason = "NotRetryable", .message = CauseText(cause)};
  }
  entry.restarts_without_progress = progressed ? 0 : entry.restarts_without_progress + 1;
  const int used = ++entry.restarts_by_cause[cause_class];
  const int limit = IsInfrastructure(cause_class) ? limits.max_restarts() : limits.max_user_error_restarts();
  if (used > limit) {
    return {.reason = "RestartBudgetSpent",
            .message = absl::StrCat(CauseText(cause), "; no restart: ", limit, " restarts after ",
                                    CauseName(cause_class), " are allowed (fault_tolerance.",
                                    IsInfrastructure(cause_class) ? "max_restarts" : "max_user_error_restarts", ")")};
  }
  if (entry.restarts_without_progress >= limits.max_restarts_without_progress()) {
    return {.reason = "NoProgress",
            .message = absl::StrCat(CauseText(cause), "; no restart: ", entry.restarts_without_progress,
                                    " attempts in a row did not get beyond step ", entry.best_step,
                                    " (fault_tolerance.max_restarts_without_progress)")};
  }
  return {.restart = true};
}

std::string CauseText(const v1::Cause& cause) {
  std::string text = CauseName(cause.cause_class());
  if (cause.has_rank()) absl::StrAppend(&text, " on rank ", cause.rank());
  if (!cause.node_id().empty()) absl::StrAppend(&text, " (node ", cause.node_id(), ")");
  if (!cause.message().empty()) absl::StrAppend(&text, ": ", cause.message());
  if (!cause.phase().empty()) absl::StrAppend(&text, " [", cause.phase(), "]");
  if (!cause.collective().empty()) absl::StrAppend(&text, " [", cause.collective(), "]");
  return text;
}

}  // namespace slipway::server::core
