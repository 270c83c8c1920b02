#include "tests/multi/layout_harness.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "engine/arch/presets.h"
#include "engine/comm/thread_communicator.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "engine/parallel/pipeline_runner.h"
#include "tests/support/live_bytes.h"
#include "tests/support/tensor_near.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: the harness names nearly every folder of the engine

constexpr int64_t kLength = 24;

struct Sample {
  at::Tensor tokens, labels, weights;
};

// Sample `index` of the stream, the same in every step; some have no trained token at all, others few, many, or
// fractions.
Sample MakeSample(int64_t index, int64_t vocab_size) {
  at::Generator generator = at::detail::createCPUGenerator(1000 + index % kMatrixSamples);
  const at::Tensor ids = at::randint(0, vocab_size, {kLength + 1}, generator, at::kLong);
  const double density = index % 4 == 1 ? 0.0 : index % 4 == 2 ? 0.1 : 0.8;
  const at::Tensor mask = at::rand({kLength}, generator, at::kFloat) < density;
  const at::Tensor weights = mask.to(at::kFloat) * (index % 4 == 3 ? 0.5 : 1.0);
  return {ids.narrow(0, 0, kLength), ids.narrow(0, 1, kLength).clone(), weights};
}

// Sample `index` of ragged rows has so many tokens; the others do not exist.
int64_t LengthOf(int64_t index, bool ragged) {
  constexpr int64_t kLengths[kMatrixSamples] = {24, 17, 9, 22};
  return ragged ? kLengths[index % kMatrixSamples] : kLength;
}

double WeightOf(int64_t index, const arch::ModelArch& arch, const Layout& layout) {
  return MakeSample(index, arch.vocab_size).weights.narrow(0, 0, LengthOf(index, layout.ragged)).sum().item<double>();
}

// This rank's share of the samples, row by row; with padding between the rows where context parallelism pads them.
model::MicroBatch MakeMicroBatch(const std::vector<int64_t>& samples, const arch::ModelArch& arch, const Layout& layout,
                                 const nn::ContextPlace& place, at::Device device) {
  const int64_t all = kLength * static_cast<int64_t>(samples.size());
  std::vector<int64_t> lengths;
  for (const int64_t index : samples) lengths.push_back(LengthOf(index, layout.ragged));
  model::MicroBatch batch;
  batch.layout = nn::MakeSequenceLayout(lengths, samples, all, device, place);
  const nn::SequenceLayout& whole = batch.layout.context ? *batch.layout.context->whole : batch.layout;
  batch.tokens = at::zeros({all}, at::kLong);
  batch.labels = at::zeros({all}, at::kLong);
  batch.weights = at::zeros({all}, at::kFloat);
  for (size_t row = 0; row < samples.size(); ++row) {
    const Sample sample = MakeSample(samples[row], arch.vocab_size);
    const auto put = [&](const at::Tensor& into, const at::Tensor& values) {
      into.narrow(0, whole.cu_seqlens_host[row], lengths[row]).copy_(values.narrow(0, 0, lengths[row]));
    };
    put(batch.tokens, sample.tokens);
    put(batch.labels, sample.labels);
    put(batch.weights, sample.weights);
  }
  for (at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.weights}) {
    if (batch.layout.context) *tensor = tensor->index_select(0, at::tensor(batch.layout.context->tokens_host));
    *tensor = tensor->to(device);
  }
  return batch;
}

topology::PipelineSchedule ScheduleOf(const Layout& layout, int micro_batches) {
  return layout.vpp == 1 ? *topology::OneForwardOneBackward(layout.sizes.pp, micro_batches)
                         : *topology::InterleavedOneForwardOneBackward(layout.sizes.pp, layout.vpp, micro_batches,
                                                                       layout.vpp_group);
}

topology::PipelinePartition PartitionOf(const Layout& layout, int num_layers) {
  return layout.pipeline_layout.empty()
             ? *topology::PartitionLayers(num_layers, layout.sizes.pp, layout.vpp)
             : *topology::PartitionByLayout(num_layers, layout.sizes.pp, layout.pipeline_layout);
}

// Puts what a rank owns of each gradient into the whole tensors; NaN marks what nobody has given.
void CollectGradients(parallel::FlatStore& store, std::map<std::string, at::Tensor>& whole) {
  for (const parallel::OwnedRange& range : store.owned_ranges()) {
    const parallel::LogicalShare& share = *range.share;
    if (!share.primary) continue;
    at::Tensor& tensor = whole[share.spec->name];
    if (!tensor.defined()) tensor = at::full(share.spec->shape, std::nanf(""), at::kFloat);
    at::Tensor index = at::arange(tensor.numel(), at::kLong).view(share.spec->shape);
    for (size_t dim = 0; dim < share.box.start.size(); ++dim) {
      index = index.narrow(static_cast<int64_t>(dim), share.box.start[dim], share.box.extent[dim]);
    }
    const int64_t count = range.end - range.begin;
    tensor.view(-1).index_copy_(0, index.reshape(-1).narrow(0, range.begin, count),
                                store.buckets()[share.bucket].grad_slice().narrow(0, range.offset, count).cpu());
  }
}

class RankRun {
 public:
  RankRun(const arch::ModelArch& arch, const Layout& layout, const topology::Mesh& mesh, int rank,
          comm::GroupFactory& factory, const MatrixDevice& where, const CommCounts* counts)
      : arch_(arch),
        layout_(layout),
        where_(where),
        at_(mesh.CoordinatesOf(rank)),
        groups_(MakeParallelGroups(mesh, rank, factory)) {
    const topology::PipelinePartition partition = PartitionOf(layout, static_cast<int>(arch.num_layers));
    std::vector<std::vector<arch::Piece>> chunk_pieces;
    std::vector<arch::Piece> all;
    for (const topology::PipelineStage& stage : partition.OfRank(at_.pp)) {
      chunk_pieces.push_back(parallel::PiecesOfStage(stage));
      all.insert(all.end(), chunk_pieces.back().begin(), chunk_pieces.back().end());
    }
    const parallel::FlatStoreOptions options{.compute_dtype = where.compute_dtype,
                                             .device = where.device,
                                             .sharding = layout.sharding,
                                             .bucket_elements = 5000,
                                             .sequence_parallel = layout.sequence_parallel,
                                             .overlap_grad_reduce = layout.overlap,
                                             .overlap_param_gather = layout.overlap,
                                             .grad_reduce_in_fp32 = layout.grad_reduce_in_fp32};
    const LiveBytes live;
    auto store = parallel::FlatStore::Create(arch::BuildParamTable(arch), all, mesh, rank, groups_, options);
    if (!store.ok()) throw std::runtime_error(std::string(store.status().message()));
    store_ = *std::move(store);
    if (counts != nullptr) {
      costs_.emplace(arch, chunk_pieces, mesh, rank, groups_, options, layout.recompute, *counts);
      costs_->ExpectAllocated(live.now());
    }
    store_->InitializeWeights(3);
    parallel::ParallelLayerFactory layers([this](const std::string& group) { return store_->Handle(group); }, groups_,
                                          {.vocab_size = arch.vocab_size,
                                           .sequence_parallel = layout.sequence_parallel,
                                           .tp_comm_overlap = layout.tp_comm_overlap,
                                           .cp_comm = layout.cp_comm,
                                           .recompute = layout.recompute});
    std::vector<model::StagePieces> chunks;
    for (const auto& pieces : chunk_pieces) chunks.push_back(model::BuildDecoder(arch, pieces, layers, where.device));
    runner_ = std::make_unique<parallel::PipelineRunner>(
        std::move(chunks), *store_, groups_,
        parallel::PipelineOptions{.hidden_size = arch.hidden_size,
                                  .activation_dtype = where.compute_dtype,
                                  .device = where.device,
                                  .token_shards = layout.sequence_parallel ? layout.sizes.tp : 1,
                                  .recompute = layout.recompute});
    optimizer_ = std::make_unique<optim::AdamW>(
        *store_, groups_, optim::AdamWOptions{.max_grad_norm = 0.5, .count_zeros = true, .params_norm = true});
  }

  LayoutResult Train() {
    LayoutResult result;
    const topology::PipelineSchedule schedule = ScheduleOf(layout_, MicroBatches());
    for (int step = 1; step <= kMatrixSteps; ++step) {
      double weights = 0;
      for (int i = 0; i < kMatrixSamples; ++i) weights += WeightOf(i, arch_, layout_);
      parallel::StepInput input = Feed(step);
      input.loss_scale = 1 / weights;
      input.sample_loss_scale = 1.0 / kMatrixSamples;
      if (costs_.has_value()) costs_->BeginStep();
      const at::Tensor loss = runner_->TrainStep(schedule, input);
      if (step == 1) CollectGradients(*store_, result.gradients);
      const optim::StepOutcome outcome = optimizer_->Step(2e-3, loss);
      if (costs_.has_value()) costs_->ExpectStep(schedule, *store_, layout_.Text());
      const double mean = parallel::SumOverReplicasAndStages(loss, groups_).item<double>() / weights;
      if (groups_.world->rank() != 0) continue;
      result.losses.push_back(mean);
      result.norms.push_back(outcome.grad_norm.item<double>());
      result.zeros.push_back(outcome.num_zeros.item<double>());
      result.params_norms.push_back(outcome.params_norm.item<double>());
    }
    const at::Tensor loss = runner_->Evaluate(*topology::ForwardOnly(layout_.sizes.pp, layout_.vpp, MicroBatches()),
                                              Feed(kMatrixSteps + 1));
    const double sum = parallel::SumOverReplicasAndStages(loss, groups_).item<double>();
    if (groups_.world->rank() == 0) result.evaluation = sum;
    return result;
  }

 private:
  int MicroBatches() const { return kMatrixSamples / (layout_.sizes.dp * layout_.rows_per_micro_batch); }

  parallel::StepInput Feed(int step) const {
    const auto micro_batch = [this, step](int index) {
      std::vector<int64_t> samples;
      for (int row = 0; row < layout_.rows_per_micro_batch; ++row) {
        const int in_batch = (index * layout_.sizes.dp + at_.dp) * layout_.rows_per_micro_batch + row;
        samples.push_back(int64_t{step - 1} * kMatrixSamples + in_batch);
      }
      return MakeMicroBatch(samples, arch_, layout_, {.rank = at_.cp, .size = layout_.sizes.cp}, where_.device);
    };
    return {.micro_batch = micro_batch, .seed = 5, .step = step};
  }

  arch::ModelArch arch_;
  Layout layout_;
  MatrixDevice where_;
  topology::Coordinates at_;
  comm::ParallelGroups groups_;
  std::unique_ptr<parallel::FlatStore> store_;
  std::unique_ptr<parallel::PipelineRunner> runner_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::optional<CostCheck> costs_;
};

}  // namespace

std::string Layout::Text() const {
  return absl::StrCat(topology::MeshText(sizes), vpp > 1 ? absl::StrCat(" vpp", vpp) : "",
                      vpp_group > 0 ? absl::StrCat(" groups of ", vpp_group) : "",
                      pipeline_layout.empty() ? "" : absl::StrCat(" ", pipeline_layout),
                      order == topology::kDefaultRankOrder ? "" : absl::StrCat(" ", order), " ",
                      std::string(ShardingName(sharding)), overlap ? "" : " no overlap",
                      sequence_parallel ? " sequence parallel" : "", tp_comm_overlap ? " tp overlap" : "", " rows ",
                      rows_per_micro_batch, ragged ? " ragged" : "",
                      sizes.cp > 1 ? absl::StrCat(" cp_comm ", static_cast<int>(cp_comm)) : "");
}

LayoutResult TrainRank(const arch::ModelArch& arch, const Layout& layout, int rank, comm::GroupFactory& factory,
                       const MatrixDevice& where, const CommCounts* counts) {
  const topology::Mesh mesh = *topology::Mesh::Create(layout.sizes, layout.order);
  return RankRun(arch, layout, mesh, rank, factory, where, counts).Train();
}

LayoutResult Train(const arch::ModelArch& arch, const Layout& layout) {
  LayoutResult whole;
  std::mutex mutex;
  std::vector<std::shared_ptr<CommCounts>> counts;
  for (int rank = 0; rank < layout.sizes.World(); ++rank) counts.push_back(std::make_shared<CommCounts>());
  const auto body = [&](int rank, comm::GroupFactory& factory) {
    LayoutResult part = TrainRank(arch, layout, rank, factory, {}, counts[rank].get());
    std::lock_guard lock(mutex);
    for (const auto& [name, gradient] : part.gradients) {
      const auto [at, is_new] = whole.gradients.try_emplace(name, gradient);
      if (!is_new) at->second = at::where(gradient.isnan(), at->second, gradient);
    }
    if (rank != 0) return;
    part.gradients.swap(whole.gradients);
    whole = std::move(part);
  };
  comm::RunRanks(static_cast<int>(layout.sizes.World()), body, {.observer = [&](int rank) { return counts[rank]; }});
  return whole;
}

void ExpectEqual(const LayoutResult& one, const LayoutResult& other, const std::string& name, double tolerance) {
  ASSERT_EQ(other.losses.size(), static_cast<size_t>(kMatrixSteps));
  for (int step = 0; step < kMatrixSteps; ++step) {
    EXPECT_NEAR(other.losses[step] / one.losses[step], 1.0, tolerance) << name << ", loss of step " << step + 1;
  }
  EXPECT_NEAR(other.norms[0] / one.norms[0], 1.0, tolerance) << name << ", gradient norm of step 1";
  EXPECT_NEAR(other.params_norms[0] / one.params_norms[0], 1.0, tolerance) << name << ", parameter norm of step 1";
  // Sums that cancel to the last bit on one layout may not on another.
  EXPECT_NEAR(other.zeros[0], one.zeros[0], 2) << name << ", zeros in the gradients of step 1";
  EXPECT_NEAR(other.evaluation / one.evaluation, 1.0, tolerance) << name << ", evaluation";
  ASSERT_EQ(other.gradients.size(), one.gradients.size());
  for (const auto& [tensor, expected] : one.gradients) {
    EXPECT_LE(RelativeError(other.gradients.at(tensor), expected), tolerance) << name << ", gradient of " << tensor;
  }
}

arch::ModelArch MatrixLlama() {
  arch::ModelArch arch = *arch::FindPreset("tiny_llama");
  arch.vocab_size = 261;
  return arch;
}

arch::ModelArch MatrixTiedQwen3() {
  arch::ModelArch arch = *arch::FindPreset("tiny_qwen3");
  arch.untie_embeddings_and_output_weights = false;
  return arch;
}

arch::ModelArch MatrixQwen3Moe() {
  arch::ModelArch arch = *arch::FindPreset("tiny_qwen3_moe");
  arch.num_layers = 3;
  arch.moe->layers = {true, false, true};
  arch.moe->aux_loss_coeff = 0.05;
  arch.moe->z_loss_coeff = 0.01;
  return arch;
}

}  // namespace slipway::testing
