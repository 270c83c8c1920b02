// Runs a pipeline schedule over this rank's part of a model: the one way in which a step's forwards and backwards run,
// with one stage (plain gradient accumulation) as with many.
//
//   PipelineRunner runner(std::move(chunks), store, groups, {...});
//   at::Tensor loss = runner.TrainStep(schedule, {.micro_batch = feed, .loss_scale = 1 / weights_of_the_global_batch,
//   ...}); optimizer.Step(lr, loss);
//
// Activations go to the next stage over groups.pp, gradients back over groups.pp_back (from the last rank around to the
// first, and back, over the pp_around groups). A rank has at most schedule.channel_capacity messages under way to each
// peer and direction, which topology::CheckSchedule proves to be free of deadlock. The message of the next pass is
// asked for before a pass computes, so that it travels meanwhile. Of an activation that has been sent nothing stays but
// the autograd node that made it; its gradient starts there. Thread-safety: the training thread. Errors: CommError and
// c10::Error pass through.
#ifndef SLIPWAY_ENGINE_PARALLEL_PIPELINE_RUNNER_H_
#define SLIPWAY_ENGINE_PARALLEL_PIPELINE_RUNNER_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/arch/param_spec.h"
#include "engine/comm/parallel_groups.h"
#include "engine/model/recompute.h"
#include "engine/model/stage_piece.h"
#include "engine/parallel/flat_store.h"
#include "engine/topology/pipeline_partition.h"
#include "engine/topology/pipeline_schedule.h"

namespace slipway::engine::parallel {

// The pieces of a pipeline stage, in order.
std::vector<arch::Piece> PiecesOfStage(const topology::PipelineStage& stage);

struct PipelineOptions {
  int64_t hidden_size = 0;
  at::ScalarType activation_dtype = at::kFloat;  // of what travels between stages
  at::Device device = at::kCPU;
  int token_shards =
      1;  // sequence parallelism: of a layout's tokens 1 / token_shards travel (the tensor-parallel size)
  nn::RecomputeOptions recompute;  // of whole layers
};

struct StepInput {
  // Micro-batch m of this rank's data-parallel share; asked for once a chunk and micro-batch, in the schedule's order.
  std::function<model::MicroBatch(int micro_batch)> micro_batch;
  double loss_scale = 1;  // the gradient of each loss sum: 1 / Σ weights of the whole global batch
  double sample_loss_scale = 0;  // see nn::ForwardContext
  uint64_t seed = 0;
  int64_t step = 0;
  nn::RoutingStatistics* routing = nullptr;  // filled by layers of experts
};

class PipelineRunner {
 public:
  // chunks[c]: the pieces of chunk c. The store holds their parameters; it and the groups outlive the runner.
  PipelineRunner(std::vector<model::StagePieces> chunks, FlatStore& store, const comm::ParallelGroups& groups,
                 const PipelineOptions& options);

  // A whole step's gradients: begins the step in the store, runs the passes, finishes the gradients. Returns the sum of
  // this rank's token losses × weights, an fp32 scalar on the device; zero where the rank has no head.
  at::Tensor TrainStep(const topology::PipelineSchedule& schedule, const StepInput& input);
  // Forward passes alone (topology::ForwardOnly), with dropout off.
  at::Tensor Evaluate(const topology::PipelineSchedule& schedule, const StepInput& input);
  int num_chunks() const { return static_cast<int>(chunks_.size()); }

 private:
  struct Message {
    comm::WorkPtr work;  // null: there is none
    at::Tensor tensor;   // alive until it has travelled
  };
  // What a forward leaves for its backward.
  struct InFlight {
    model::MicroBatch batch;
    at::Tensor input;              // undefined for the first stage
    torch::autograd::Edge output;  // of the graph, without the storage that was sent
  };
  // A pass and what it begins with.
  struct Ready {
    topology::Pass pass;
    model::MicroBatch batch;  // of a forward
    Message message;          // from another rank
  };
  using PassKey = std::pair<int, int>;  // micro-batch, chunk

  at::Tensor Run(const topology::PipelineSchedule& schedule, const StepInput& input, bool training);
  Ready Begin(const topology::PipelineSchedule& schedule, const topology::Pass& pass, const StepInput& input);
  void Forward(const topology::PipelineSchedule& schedule, Ready ready, const StepInput& input, bool training,
               at::Tensor& loss_sum);
  void Backward(const topology::PipelineSchedule& schedule, const Ready& ready, const StepInput& input);
  comm::Communicator& Channel(topology::PassKind kind, int from, int to) const;
  Message Receive(comm::Communicator& group, int peer, const model::MicroBatch& batch) const;
  void Send(comm::Communicator& group, int peer, const at::Tensor& tensor, int capacity);
  void AwaitSends();

  std::vector<model::StagePieces> chunks_;
  FlatStore& store_;
  const comm::ParallelGroups& groups_;
  PipelineOptions options_;
  std::map<PassKey, InFlight> in_flight_;
  std::map<std::pair<comm::Communicator*, int>, std::deque<Message>> sends_;  // those under way, oldest first
};

// Sums over the data-parallel replicas and the pipeline stages: what each rank counted once becomes the whole global
// batch's, the same on all ranks. `sums` stays as it is.
at::Tensor SumOverReplicasAndStages(const at::Tensor& sums, const comm::ParallelGroups& groups);

}  // namespace slipway::engine::parallel

#endif  // SLIPWAY_ENGINE_PARALLEL_PIPELINE_RUNNER_H_
