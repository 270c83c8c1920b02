// `jobs submit --dry-run`: everything that can be said about a job before it takes a GPU.
#ifndef SLIPWAY_CLIENT_DRY_RUN_H_
#define SLIPWAY_CLIENT_DRY_RUN_H_

#include "absl/status/statusor.h"
#include "client/command.h"
#include "client/job_file.h"

namespace slipway::client {

// Prints the plan, the special tokens and the dataset's report, worked out on this machine from the files that are
// here, and asks the server, when one answers, to validate the job without taking it. All faults come together in the
// error.
absl::StatusOr<int> DryRun(const Command& command, const JobFile& job);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_DRY_RUN_H_
