// Which fault counts against what, and which is only the consequence of another one. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_CORE_BUDGET_H_
#define SLIPWAY_SERVER_CORE_BUDGET_H_

#include <string>

#include "server/core/state.h"
#include "slipway/v1/job.pb.h"

namespace slipway::server::core {

// A restart would meet the same fault again: the spec's or the model's, bad data, values that are not finite.
bool IsRetryable(v1::CauseClass cause_class);
// The fault of a machine or of the network, not of the job: counted against max_restarts.
bool IsInfrastructure(v1::CauseClass cause_class);

// A consequence of another fault: a rank that noticed that another one was gone ("connection closed by peer"), or that
// was ended because the attempt was.
bool IsSecondary(const v1::Cause& cause);

struct Verdict {
  bool restart = false;
  std::string reason;   // of the failure, as a CamelCase word
  std::string message;  // for people
};
// Counts the restart that `cause` asks for and says whether it is granted. `progressed`: the attempt went beyond every
// earlier one.
Verdict ChargeRestart(JobEntry& entry, const v1::Cause& cause, bool progressed);

// One line: "rank 1 on n-2: signal 9: killed (in step 120)".
std::string CauseText(const v1::Cause& cause);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_BUDGET_H_
