// Jobs, events and metrics as text for people. Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_JOB_TEXT_H_
#define SLIPWAY_CLIENT_JOB_TEXT_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/metrics.pb.h"
#include "slipway/v1/node.pb.h"

namespace slipway::client {

// "RUNNING"; "STATE_17" for a state that this version does not know.
std::string StateText(v1::JobState state);
// By name in any case, with or without the prefix.
std::optional<v1::JobState> StateFromText(std::string_view text);
bool IsFinal(v1::JobState state);

// "rank 1 on node-2: signal 9: killed by somebody (PROCESS_KILLED, in step 120)".
std::string CauseText(const v1::Cause& cause);

// "step 12/100" or "-" before the first step.
std::string ProgressText(const v1::JobProgress& progress);

// "step 12/100  loss 2.3456  lr 1e-4  grad_norm 1.23  1,234 tok/s  0.81 s/step".
std::string StepLine(const v1::StepMetrics& step, int64_t train_iters);
std::string EvalLine(const v1::EvalMetrics& eval);
// "06:12:31 CheckpointCommitted: step 100 …".
std::string EventLine(const v1::JobEvent& event);

// Everything about one job.
std::string DescribeJob(const v1::Job& job, absl::Time now);

std::string SlotText(const v1::Slot& slot);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_JOB_TEXT_H_
