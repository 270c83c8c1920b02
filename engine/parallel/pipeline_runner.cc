#include "engine/parallel/pipeline_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

namespace slipway::engine::parallel {
namespace {

using topology::Pass;
using topology::PassKind;
using topology::Peer;
using topology::PipelineSchedule;

std::vector<arch::Piece> PiecesIn(const model::StagePieces& chunk) {
  std::vector<arch::Piece> pieces;
  for (const auto& piece : chunk) pieces.push_back(piece->piece());
  return pieces;
}

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
  TORCH_CHECK(schedule.pp == groups_.pp->size() && schedule.vpp == num_chunks(), "a schedule for ", schedule.pp,
              " stages of ", schedule.vpp, " chunks on ", groups_.pp->size(), " stages of ", num_chunks(), " chunks");
  in_flight_.clear();
  sends_.clear();
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(options_.device));
  const std::vector<Pass>& passes = schedule.ranks[groups_.pp->rank()];
  std::vector<size_t> last_backward(chunks_.size());  // by chunk: its place in the list
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].kind == PassKind::kBackward) last_backward[passes[i].chunk] = i;
  }
  Ready next = Begin(schedule, passes.front(), input);
  for (size_t i = 0; i < passes.size(); ++i) {
    Ready ready = std::move(next);
    const Pass pass = ready.pass;
    // This pass's message first: a rank that hangs is seen waiting for what it needs now.
    if (ready.message.work != nullptr) ready.message.work->Wait();
    const Pass* following = i + 1 < passes.size() ? &passes[i + 1] : nullptr;
    // With a single micro-batch a forward's own backward comes next: nothing of it can travel before the forward has
    // run.
    const bool turns_back = following != nullptr && pass.kind == PassKind::kForward &&
                            *following == Pass{PassKind::kBackward, pass.microbatch, pass.chunk};
    if (following != nullptr && !turns_back) next = Begin(schedule, *following, input);
    if (pass.kind == PassKind::kForward) {
      Forward(schedule, std::move(ready), input, training, loss_sum);
    } else {
      if (i == last_backward[pass.chunk]) store_.BeginLastBackward(PiecesIn(chunks_[pass.chunk]));
      Backward(schedule, ready, input);
    }
    if (turns_back) next = Begin(schedule, *following, input);
  }
  AwaitSends();
  return loss_sum;
}

PipelineRunner::Ready PipelineRunner::Begin(const PipelineSchedule& schedule, const Pass& pass,
                                            const StepInput& input) {
  const int rank = groups_.pp->rank();
  Ready ready;
  ready.pass = pass;
  const std::optional<Peer> from = Upstream(schedule, rank, pass);
  if (pass.kind == PassKind::kForward) ready.batch = input.micro_batch(pass.microbatch);
  if (!from.has_value()) return ready;
  // A gradient comes from another rank only after the forward has run here.
  const model::MicroBatch& batch =
      pass.kind == PassKind::kForward ? ready.batch : in_flight_.at({pass.microbatch, pass.chunk}).batch;
  ready.message = Receive(Channel(pass.kind, from->pp_rank, rank), from->pp_rank, batch);
  return ready;
}

void PipelineRunner::Forward(const PipelineSchedule& schedule, Ready ready, const StepInput& input, bool training,
                             at::Tensor& loss_sum) {
  const int rank = groups_.pp->rank();
  const Pass& pass = ready.pass;
  InFlight state{.batch = std::move(ready.batch), .input = ready.message.tensor, .output = {}};
  if (state.input.defined()) state.input.set_requires_grad(training);
  const nn::ForwardContext context{.layout = &state.batch.layout,
                                   .training = training,
                                   .seed = input.seed,
                                   .step = input.step,
                                   .sample_loss_scale = input.sample_loss_scale,
                                   .routing = input.routing};
  const at::Tensor output =
      model::ForwardRecomputing(chunks_[pass.chunk], state.input, state.batch, context, options_.recompute);
  if (training) state.output = torch::autograd::impl::gradient_edge(output);
  if (const std::optional<Peer> to = Downstream(schedule, rank, pass)) {
    Send(Channel(pass.kind, rank, to->pp_rank), to->pp_rank, output.detach(), schedule.channel_capacity);
  } else {
    at::NoGradGuard no_grad;
    loss_sum.add_(output.detach());
  }
  if (training) in_flight_.emplace(PassKey{pass.microbatch, pass.chunk}, std::move(state));
}

void PipelineRunner::Backward(const PipelineSchedule& schedule, const Ready& ready, const StepInput& input) {
  const int rank = groups_.pp->rank();
  const Pass& pass = ready.pass;
  const auto node = in_flight_.extract(PassKey{pass.microbatch, pass.chunk});
  InFlight& state = node.mapped();
  at::Tensor gradient = ready.message.tensor;
  if (!gradient.defined()) {
    gradient = at::full({}, input.loss_scale, at::TensorOptions().dtype(at::kFloat).device(options_.device));
  }
  torch::autograd::Engine::get_default_engine().execute({std::exchange(state.output, {})}, {gradient},
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
  if (const std::optional<Peer> to = Downstream(schedule, rank, pass)) {
    Send(Channel(pass.kind, rank, to->pp_rank), to->pp_rank, state.input.grad(), schedule.channel_capacity);
  }
}

comm::Communicator& PipelineRunner::Channel(PassKind kind, int from, int to) const {
  const bool forward = kind == PassKind::kForward;
  const bool around = forward ? to < from : to > from;
  if (around) return forward ? *groups_.pp_around : *groups_.pp_around_back;
  return forward ? *groups_.pp : *groups_.pp_back;
}

PipelineRunner::Message PipelineRunner::Receive(comm::Communicator& group, int peer,
                                                const model::MicroBatch& batch) const {
  Message message;
  message.tensor = at::empty({batch.layout.num_tokens / options_.token_shards, options_.hidden_size},
                             at::TensorOptions().dtype(options_.activation_dtype).device(options_.device));
  message.work = group.Recv(message.tensor, peer);
  return message;
}

void PipelineRunner::Send(comm::Communicator& group, int peer, const at::Tensor& tensor, int capacity) {
  std::deque<Message>& under_way = sends_[{&group, peer}];
  while (static_cast<int>(under_way.size()) >= capacity) {
    under_way.front().work->Wait();
    under_way.pop_front();
  }
  Message message;
  message.tensor = tensor.contiguous();
  message.work = group.Send(message.tensor, peer);
  under_way.push_back(std::move(message));
}

void PipelineRunner::AwaitSends() {
  for (auto& [peer, under_way] : sends_) {
    for (Message& message : under_way) message.work->Wait();
  }
  sends_.clear();
}

at::Tensor SumOverReplicasAndStages(const at::Tensor& sums, const comm::ParallelGroups& groups) {
  at::Tensor total = sums.clone();
  groups.dp_cp->AllReduce(total, comm::ReduceOp::kSum)->Wait();
  groups.pp->AllReduce(total, comm::ReduceOp::kSum)->Wait();
  return total;
}

}  // namespace slipway::engine::parallel
