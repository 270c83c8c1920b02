#include "worker/agent/rank_fault.h"

#include <signal.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::agent {
namespace {

using slipway::v1::Cause;
using slipway::worker::v1::ExitRecord;

void SetTime(Cause& cause, absl::Time time) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  cause.mutable_time()->set_seconds(seconds);
  cause.mutable_time()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

std::string KilledText(KillReason reason) {
  switch (reason) {
    case KillReason::kPeerFault:
      return "ended because another rank of the attempt failed";
    case KillReason::kLease:
      return "ended because the node's lease from the coordinator ran out";
    case KillReason::kLingers:
      return "ended because it did not leave after its last word";
    case KillReason::kTimeout:
      return "ended because its deadline had passed";
    case KillReason::kAsked:
    case KillReason::kNone:
      break;
  }
  return "ended as the coordinator asked";
}

std::string SignalText(int signal) {
  const char* name = ::strsignal(signal);
  return absl::StrCat("signal ", signal, " (", name == nullptr ? "unknown" : name, ")");
}

// The worker said why; what the process did adds the numbers.
Cause FromWorker(const Cause& said) {
  Cause cause = said;
  cause.set_message(link::ShortenCauseMessage(said.message()));
  if (cause.cause_class() == slipway::v1::CAUSE_CLASS_UNSPECIFIED) {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_CRASH);
  }
  cause.set_secondary(said.secondary() || IsPeerLoss(said.message()));
  if (cause.secondary() && said.cause_class() == slipway::v1::CAUSE_CLASS_UNSPECIFIED) {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_NETWORK);
  }
  return cause;
}

Cause FromSignal(const RankEnd& end, int signal) {
  Cause cause;
  cause.set_signal(signal);
  // These come from the program itself; the others somebody sent.
  const bool crash = signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
                     signal == SIGILL || signal == SIGSYS || signal == SIGTRAP;
  if (signal == SIGKILL && end.out_of_memory) {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_OOM);
    cause.set_message("the worker was killed by signal 9 (Killed) while the kernel was out of memory");
  } else if (crash) {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_CRASH);
    cause.set_message(
        absl::StrCat("the worker crashed: ", SignalText(signal), end.record->core_dumped() ? ", core dumped" : ""));
  } else {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
    cause.set_message(absl::StrCat("the worker was killed by ", SignalText(signal)));
  }
  return cause;
}

Cause FromExitCode(int code) {
  Cause cause;
  cause.set_cause_class(slipway::v1::CAUSE_CLASS_CRASH);
  cause.set_exit_code(code);
  cause.set_message(code == 0 ? "the worker left with exit code 0 before its work was done"
                              : absl::StrCat("the worker left with exit code ", code, " and gave no reason"));
  return cause;
}

Cause WithoutRecord(const RankEnd& end) {
  Cause cause;
  if (end.machine_restarted) {
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_NODE_LOST);
    cause.set_message("the machine was started anew");
    return cause;
  }
  cause.set_cause_class(slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  cause.set_message(end.shim_error.empty() ? "the worker's shim was killed, and the worker with it" : end.shim_error);
  return cause;
}

Cause KilledByUs(KillReason reason) {
  Cause cause;
  cause.set_cause_class(slipway::v1::CAUSE_CLASS_OPERATOR);
  cause.set_message(KilledText(reason));
  cause.set_secondary(true);
  return cause;
}

Cause FaultOf(const RankEnd& end) {
  const ExitRecord* record = end.record.has_value() ? &*end.record : nullptr;
  if (record != nullptr && record->spawn_failed()) {
    Cause cause;
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_INTERNAL);
    cause.set_message(
        link::ShortenCauseMessage(absl::StrCat("the worker could not be started: ", record->spawn_error())));
    return cause;
  }
  Cause cause;
  if (record != nullptr && record->outcome() == slipway::v1::RANK_OUTCOME_FAULT) {
    cause = FromWorker(record->cause());
  } else if (end.report.outcome() == slipway::v1::RANK_OUTCOME_FAULT) {
    cause = FromWorker(end.report.cause());
  } else if (end.killed != KillReason::kNone) {
    cause = KilledByUs(end.killed);
  } else if (record == nullptr) {
    cause = WithoutRecord(end);
  } else if (record->signalled()) {
    cause = FromSignal(end, record->signal());
  } else {
    cause = FromExitCode(record->exit_code());
  }
  if (record != nullptr && record->signalled()) cause.set_signal(record->signal());
  if (record != nullptr && record->exited()) cause.set_exit_code(record->exit_code());
  return cause;
}

}  // namespace

bool IsPeerLoss(std::string_view message) {
  // Texts of Linux, Gloo, c10d's store and NCCL.
  constexpr std::array<std::string_view, 9> kSigns = {
      "closed by peer",     "reset by peer",         "Broken pipe",
      "Connection refused", "pair closure",          "Failed to recv, got 0 bytes",
      "ncclRemoteError",    "remote process exited", "Connection was likely closed"};
  for (const std::string_view sign : kSigns) {
    if (message.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

RankVerdict Judge(const RankEnd& end) {
  RankVerdict verdict;
  // The worker's last word counts once the process is gone: COMPLETED and STOPPED mean that the checkpoint is durable.
  slipway::v1::RankOutcome said =
      end.record.has_value() ? end.record->outcome() : slipway::v1::RANK_OUTCOME_UNSPECIFIED;
  if (said == slipway::v1::RANK_OUTCOME_UNSPECIFIED) said = end.report.outcome();
  if (said == slipway::v1::RANK_OUTCOME_COMPLETED || said == slipway::v1::RANK_OUTCOME_STOPPED) {
    verdict.outcome = said;
    return verdict;
  }
  verdict.outcome = slipway::v1::RANK_OUTCOME_FAULT;
  verdict.cause = FaultOf(end);
  Cause& cause = verdict.cause;
  if (!cause.has_time()) SetTime(cause, end.ended);
  cause.set_rank(end.report.rank());
  if (cause.phase().empty()) cause.set_phase(end.report.phase());
  if (!cause.has_step()) cause.set_step(end.report.step());
  if (end.collective.has_value() && cause.collective().empty()) {
    cause.set_collective(link::CollectiveText(*end.collective, end.ended_monotonic));
    if (cause.phase().empty()) cause.set_phase(end.collective->phase);
  }
  return verdict;
}

}  // namespace slipway::worker::agent
