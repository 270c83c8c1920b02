// The one host-side agreement of a job: a Gloo group (threads in tests) on its own thread, one fixed record a step,
// exchanged one step ahead of its use. Every decision that all ranks must take alike goes through it and nothing else
// does: stop or save at step S, token counts, step and spec hashes, parameter checksums now and then.
//
// The parameter checksum is that of the weights when the record was posted, so a difference is found one step later.
//
// Use: in step s call Post(local record for step s + 1), go on training, and at the start of step s + 1 Take() the
// agreed one. Post never blocks; Take blocks until all ranks have posted. The very first record is posted before the
// first step. Thread-safety: Post and Take from the training thread. Errors: Take returns DeadlineExceeded or
// Unavailable naming the group; FailedPrecondition when ranks disagree on step or hash, naming the ranks and both
// values.
#ifndef SLIPWAY_ENGINE_COMM_CONTROL_CHANNEL_H_
#define SLIPWAY_ENGINE_COMM_CONTROL_CHANNEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"

namespace slipway::engine::comm {

// What one rank contributes for a step.
struct ControlRecord {
  int64_t step = 0;                 // must be equal on all ranks
  uint64_t spec_hash = 0;           // must be equal on all ranks
  uint64_t parameter_checksum = 0;  // 0: not compared in this step; else equal over replicas of the same shard
  int32_t parameter_group = 0;      // ranks with the same number hold the same parameters
  bool stop = false;                // this rank was asked to stop after this step
  int64_t checkpoint_requests = 0;  // highest checkpoint-now number that this rank has seen
  bool failed = false;              // this rank cannot go on after this step (data or storage fault)
};

// What all ranks act on: the same values everywhere.
struct ControlDecision {
  int64_t step = 0;
  bool stop = false;                // some rank was asked to stop
  int64_t checkpoint_requests = 0;  // the maximum
  int failed_rank = -1;             // the lowest rank that reported failed
};

class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual void Post(const ControlRecord& record) = 0;
  virtual absl::StatusOr<ControlDecision> Take() = 0;
};

// Runs the exchange over `world` (a CPU communicator that nothing else uses) on a thread of its own.
std::unique_ptr<ControlChannel> MakeControlChannel(CommPtr world);

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_CONTROL_CHANNEL_H_
