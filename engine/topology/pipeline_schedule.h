// Pipeline schedules as data: for every pipeline rank the order of its forward and backward passes. A runner only walks
// the list; what it must send and receive follows from the pass, the rank and the number of ranks (see Upstream). The
// schedules are Megatron-LM's (megatron/core/pipeline_parallel/schedules.py): 1F1B, and interleaved 1F1B with several
// model chunks on a rank. Thread-safe: pure functions and immutable data.
#ifndef SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_SCHEDULE_H_
#define SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::engine::topology {

enum class PassKind : uint8_t { kForward, kBackward };

struct Pass {
  PassKind kind = PassKind::kForward;
  int microbatch = 0;
  int chunk = 0;

  friend bool operator==(const Pass&, const Pass&) = default;
};

// "F3.1": forward of micro-batch 3 through chunk 1.
std::string PassText(const Pass& pass);

struct PipelineSchedule {
  int pp = 1;
  int vpp = 1;
  int num_microbatches = 1;
  // Messages of one kind that one rank may have sent to another before the first of them is received: what the schedule
  // needs to run without a deadlock.
  int channel_capacity = 1;
  std::vector<std::vector<Pass>> ranks;  // by pipeline rank
};

// warm-up of pp - rank - 1 forwards, then one forward and one backward in turn, then the remaining backwards.
// InvalidArgument when a size is below 1.
absl::StatusOr<PipelineSchedule> OneForwardOneBackward(int pp, int num_microbatches);

// `group` micro-batches go through one chunk before the next chunk's turn; 0 means pp. A group above pp starts the first
// rank's next chunk late, so that the last rank must be able to run ahead: channel_capacity is group - pp + 1.
// InvalidArgument with the numbers unless pp > 1, vpp > 1, pp <= group <= num_microbatches, and num_microbatches % group
// is 0 or at least pp.
absl::StatusOr<PipelineSchedule> InterleavedOneForwardOneBackward(int pp, int vpp, int num_microbatches, int group = 0);

// Evaluation: all forwards, chunk by chunk in the interleaved order (group = pp).
absl::StatusOr<PipelineSchedule> ForwardOnly(int pp, int vpp, int num_microbatches);

// Where the input of a pass comes from (the activation of the stage before, or the gradient of the stage after): the
// rank and the chunk there. Empty for the first stage's forward and the last stage's backward.
struct Peer {
  int pp_rank = 0;
  int chunk = 0;

  friend bool operator==(const Peer&, const Peer&) = default;
};
std::optional<Peer> Upstream(const PipelineSchedule& schedule, int pp_rank, const Pass& pass);
// Where the output of a pass goes. Empty for the last stage's forward and the first stage's backward.
std::optional<Peer> Downstream(const PipelineSchedule& schedule, int pp_rank, const Pass& pass);

// The most forwards of a rank whose backward has not run yet: activations held at once.
int PeakInFlight(const PipelineSchedule& schedule, int pp_rank);
// The bound that Megatron-LM states: the rank's warm-up plus one, at most all passes.
int InFlightBound(const PipelineSchedule& schedule, int pp_rank, int group = 0);

// Checks that every (micro-batch, chunk) runs forward once and then backward once on each rank (no backward at all in
// an evaluation schedule); that messages of one kind from one rank to another are received in the order in which they
// are sent, so that they need no tags; and that nothing deadlocks when a receive waits for its message and a send waits
// while `schedule.channel_capacity` messages of its kind to that rank have not been received.
absl::Status CheckSchedule(const PipelineSchedule& schedule);

// Of one micro-batch through one stage.
struct StageTime {
  double forward = 0;
  double backward = 0;
};

struct SimulationOptions {
  // By stage in model order, pp * vpp of them. Empty: all stages alike, 1 forward and 2 backward through all chunks of
  // one rank.
  std::vector<StageTime> stages;
  double message_time = 0;  // from the end of a pass until another rank can use its output
};

struct SimulationResult {
  double makespan = 0;
  double useful = 0;  // the passes of one rank, the mean over the ranks
  // Idle over useful time, (makespan - useful) / useful. With stages alike and free messages (pp - 1) / m for 1F1B and (pp - 1) / (vpp * m)
  // interleaved.
  double bubble_fraction = 0;
};

// Runs the schedule on paper. Errors as CheckSchedule, with unlimited channels, and InvalidArgument for stage times that
// are not pp * vpp.
absl::StatusOr<SimulationResult> Simulate(const PipelineSchedule& schedule, const SimulationOptions& options = {});

}  // namespace slipway::engine::topology

#endif  // SLIPWAY_ENGINE_TOPOLOGY_PIPELINE_SCHEDULE_H_
