// From a request to a checked job.
// Thread-safe: pure functions, apart from the random part of ids.
#ifndef SLIPWAY_SERVER_RPC_SUBMIT_H_
#define SLIPWAY_SERVER_RPC_SUBMIT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/spec/spec_fault.h"
#include "server/core/event.h"
#include "server/core/state.h"
#include "slipway/v1/job_service.pb.h"

namespace slipway::server::rpc {

struct SubmitOptions {
  // Jobs' paths must lie under one of these; empty: the agents alone decide.
  std::vector<std::string> allowed_roots;
  // A job's output goes to <output_root>/<project>/<job id>.
  std::string output_root;
};

// A fault for each path of the spec that is outside of every root.
engine::spec::SpecFaults CheckRoots(const v1::TrainingSpec& spec, const std::vector<std::string>& roots);

// InvalidArgument with all faults.
absl::StatusOr<core::CreateJob> MakeCreateJob(const v1::CreateJobRequest& request, const SubmitOptions& options,
                                              absl::Time now);
// FailedPrecondition (reason CHECKPOINT_PATH_IN_USE) while another job that has not ended saves where this one asks to.
// What a job that has ended left there is the preflight's to find.
absl::Status CheckCheckpointDir(const core::ClusterState& state, const core::CreateJob& create);
absl::StatusOr<core::ResumeJob> MakeResumeJob(const v1::ResumeJobRequest& request, const core::JobEntry& entry,
                                              const SubmitOptions& options);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_SUBMIT_H_
