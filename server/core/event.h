// What can happen to the coordinator, and what follows from it. Plain data.
#ifndef SLIPWAY_SERVER_CORE_EVENT_H_
#define SLIPWAY_SERVER_CORE_EVENT_H_

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::server::core {

// The verbs of JobService, validated as far as they do not depend on the state. An empty etag matches everything.
struct CreateJob {
  std::string id;
  std::string nonce;
  v1::TrainingSpec spec;  // resolved
  v1::TrainingSpec submitted_spec;
  std::string output_dir;
  std::string checkpoint_dir;
};
struct PauseJob {
  std::string id;
  std::string etag;
};
struct ResumeJob {
  std::string id;
  std::string etag;
  v1::TrainingSpec spec;  // resolved, with the patch applied
  bool changed = false;   // it differs from the job's
  std::string changes;    // for people: "parallelism.data_parallel_size 2 -> 1"
};
struct CancelJob {
  std::string id;
  std::string etag;
};
struct HoldJob {
  std::string id;
  std::string etag;
};
struct ReleaseJob {
  std::string id;
  std::string etag;
};
struct CheckpointJob {
  std::string id;
};

// What agents say.
struct AgentConnected {
  v1::AgentHello hello;
};
struct AgentDisconnected {
  std::string node_id;
  int64_t session_number = 0;
};
struct AgentHeartbeat {
  std::string node_id;
  int64_t applied_revision = 0;
};
struct AgentObserved {
  std::string node_id;
  v1::ObservedState observed;
};
struct AgentMetrics {
  v1::MetricBatch batch;
};

// Time passed.
struct Tick {};
// The coordinator is about to end with its nodes: jobs checkpoint, stop and go back to the queue.
struct Drain {
  bool hurry = false;  // without checkpoints
};

using Event = std::variant<CreateJob, PauseJob, ResumeJob, CancelJob, HoldJob, ReleaseJob, CheckpointJob,
                           AgentConnected, AgentDisconnected, AgentHeartbeat, AgentObserved, AgentMetrics, Tick, Drain>;

struct QueueWait {
  std::string job_id;
  absl::Duration duration;
};

struct Effects {
  absl::Status status;               // of a verb
  int64_t checkpoint_request = 0;    // of CheckpointJob
  std::set<std::string> jobs;        // to be stored
  std::set<std::string> progressed;  // changed in memory only
  std::vector<v1::JobEvent> events;  // to be stored, in the order of their revisions
  std::set<std::string> nodes;       // to be stored
  std::set<std::string> publish;     // nodes whose desired state has changed
  std::vector<v1::CauseClass> restarts;
  std::vector<QueueWait> queue_waits;
};

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_EVENT_H_
