#include "engine/parallel/pipeline_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <optional>

namespace slipway::engine::parallel {
namespace {

using topology::Pass;
using topology::PassKind;
using topology::Peer;
using topology::PipelineSchedule;

}  // namespace

std::vector<arch::Piece> PiecesOfStage(const topology::PipelineStage& stage) {
  std::vector<arch::Piece> pieces;
  if (stage.has_embedding) pieces.push_back({arch::Piece::Kind::kEmbedding});
  for (int i = 0; i < stage.num_layers; ++i) pieces.push_back({arch::Piece::Kind::kLayer, stage.first_layer + i});
  if (stage.has_head) pieces.push_back({arch::Piece::Kind::kHead});
  return pieces;
}

PipelineRunner::PipelineRunner(std::vector<model::StagePieces> chunks, FlatStore& store,
                               const comm::ParallelGroups& groups, const PipelineOptions& options)
    : chunks_(std::move(chunks)), store_(store), groups_(groups), options_(options) {}

at::Tensor PipelineRunner::TrainStep(const PipelineSchedule& schedule, const StepInput& input) {
  store_.BeginStep();
  at::Tensor loss_sum = Run(schedule, input, /*training=*/true);
  store_.FinishGradients();
  return loss_sum;
}

at::Tensor PipelineRunner::Evaluate(const PipelineSchedule& schedule, const StepInput& input) {
  at::NoGradGuard no_grad;
  return Run(schedule, input, /*training=*/false);
}

at::Tensor PipelineRunner::Run(const PipelineSchedule& schedule, const StepInput& input, bool training) {
  TORCH_CHECK(schedule.pp == groups_.pp->size() && schedule.vpp == static_cast<int>(chunks_.size()), "a schedule for ",
              schedule.pp, " stages of ", schedule.vpp, " chunks on ", groups_.pp->size(), " stages of ",
              chunks_.size(), " chunks");
  in_flight_.clear();
  sends_.clear();
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(options_.device));
  const std::vector<Pass>& passes = schedule.ranks[groups_.pp->rank()];
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) {
      Forward(schedule, pass, input, training, loss_sum);
    } else {
      if (&pass == &passes.back()) store_.BeginLastMicroBatch();
      Backward(schedule, pass, input);
    }
  }
  AwaitSends();
  return loss_sum;
}

void PipelineRunner::Forward(const PipelineSchedule& schedule, const Pass& pass, const StepInput& input, bool training,
                             at::Tensor& loss_sum) {
  const int rank = groups_.pp->rank();
  InFlight state;
  state.batch = input.micro_batch(pass.microbatch);
  if (const std::optional<Peer> from = Upstream(schedule, rank, pass)) {
    state.input = Receive(*groups_.pp, from->pp_rank, state.batch.layout.num_tokens);
    state.input.set_requires_grad(training);
  }
  const nn::ForwardContext context{
      .layout = &state.batch.layout, .training = training, .seed = input.seed, .step = input.step};
  state.output = model::ForwardPieces(chunks_[pass.chunk], state.input, state.batch, context);
  if (const std::optional<Peer> to = Downstream(schedule, rank, pass)) {
    Send(*groups_.pp, to->pp_rank, state.output.detach());
  } else {
    at::NoGradGuard no_grad;
    loss_sum.add_(state.output.detach());
  }
  if (training) in_flight_.emplace(PassKey{pass.microbatch, pass.chunk}, std::move(state));
}

void PipelineRunner::Backward(const PipelineSchedule& schedule, const Pass& pass, const StepInput& input) {
  const int rank = groups_.pp->rank();
  const auto node = in_flight_.extract(PassKey{pass.microbatch, pass.chunk});
  const InFlight& state = node.mapped();
  at::Tensor gradient;
  if (const std::optional<Peer> from = Upstream(schedule, rank, pass)) {
    gradient = Receive(*groups_.pp_back, from->pp_rank, state.batch.layout.num_tokens);
  } else {
    gradient = at::full_like(state.output, input.loss_scale);
  }
  state.output.backward(gradient);
  if (const std::optional<Peer> to = Downstream(schedule, rank, pass)) {
    Send(*groups_.pp_back, to->pp_rank, state.input.grad());
  }
}

at::Tensor PipelineRunner::Receive(comm::Communicator& group, int peer, int64_t num_tokens) {
  at::Tensor tensor = at::empty({num_tokens / options_.token_shards, options_.hidden_size},
                                at::TensorOptions().dtype(options_.activation_dtype).device(options_.device));
  group.Recv(tensor, peer)->Wait();
  return tensor;
}

void PipelineRunner::Send(comm::Communicator& group, int peer, at::Tensor tensor) {
  Message& last = sends_[{&group, peer}];
  if (last.work != nullptr) last.work->Wait();
  last.tensor = tensor.contiguous();
  last.work = group.Send(last.tensor, peer);
}

void PipelineRunner::AwaitSends() {
  for (auto& [peer, message] : sends_) message.work->Wait();
  sends_.clear();
}

at::Tensor SumOverReplicasAndStages(const at::Tensor& sums, const comm::ParallelGroups& groups) {
  at::Tensor total = sums.clone();
  groups.dp_cp->AllReduce(total, comm::ReduceOp::kSum)->Wait();
  groups.pp->AllReduce(total, comm::ReduceOp::kSum)->Wait();
  return total;
}

}  // namespace slipway::engine::parallel
