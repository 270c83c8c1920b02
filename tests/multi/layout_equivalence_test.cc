// Loss and gradients do not depend on how a job is laid out: every layout of tensor, pipeline and data parallelism,
// with sharded and with replicated optimizer state, against one rank. Ranks are threads.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/arch/presets.h"
#include "engine/comm/thread_communicator.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "engine/parallel/pipeline_runner.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/rank_process.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine {
namespace {

using ::slipway::testing::RelativeError;

constexpr int kSamples = 4;  // of a global batch
constexpr int64_t kLength = 24;
constexpr int kSteps = 5;

struct Layout {
  topology::MeshSizes sizes;
  int vpp = 1;
  bool shard = true;
  int rows_per_micro_batch = 1;

  std::string Text() const {
    return absl::StrCat(topology::MeshText(sizes), vpp > 1 ? absl::StrCat(" vpp", vpp) : "", shard ? " sharded" : "",
                        " rows ", rows_per_micro_batch);
  }
};

struct Sample {
  at::Tensor tokens, labels, weights;
};

// Sample `index` of the stream, the same in every step; some have no trained token at all, others few, many, or
// fractions.
Sample MakeSample(int64_t index, int64_t vocab_size) {
  at::Generator generator = at::detail::createCPUGenerator(1000 + index % kSamples);
  const at::Tensor ids = at::randint(0, vocab_size, {kLength + 1}, generator, at::kLong);
  const double density = index % 4 == 1 ? 0.0 : index % 4 == 2 ? 0.1 : 0.8;
  const at::Tensor mask = at::rand({kLength}, generator, at::kFloat) < density;
  const at::Tensor weights = mask.to(at::kFloat) * (index % 4 == 3 ? 0.5 : 1.0);
  return {ids.narrow(0, 0, kLength), ids.narrow(0, 1, kLength).clone(), weights};
}

model::MicroBatch MakeMicroBatch(const std::vector<int64_t>& samples, int64_t vocab_size) {
  std::vector<at::Tensor> tokens, labels, weights;
  for (int64_t index : samples) {
    const Sample sample = MakeSample(index, vocab_size);
    tokens.push_back(sample.tokens);
    labels.push_back(sample.labels);
    weights.push_back(sample.weights);
  }
  const std::vector<int64_t> lengths(samples.size(), kLength);
  return {at::cat(tokens), at::cat(labels), at::cat(weights),
          nn::MakeSequenceLayout(lengths, samples, kLength * static_cast<int64_t>(samples.size()), at::kCPU)};
}

struct Result {
  std::vector<double> losses;  // mean over the weights of the global batch
  std::vector<double> norms;
  double evaluation = 0;                        // the loss sum after the last step
  std::map<std::string, at::Tensor> gradients;  // of step 1, whole tensors
};

topology::PipelineSchedule ScheduleOf(const Layout& layout, int micro_batches) {
  return layout.vpp == 1 ? *topology::OneForwardOneBackward(layout.sizes.pp, micro_batches)
                         : *topology::InterleavedOneForwardOneBackward(layout.sizes.pp, layout.vpp, micro_batches);
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
                                store.buckets()[share.bucket].grad_slice().narrow(0, range.offset, count));
  }
}

class RankRun {
 public:
  RankRun(const arch::ModelArch& arch, const Layout& layout, const topology::Mesh& mesh, int rank,
          comm::GroupFactory& factory)
      : arch_(arch), layout_(layout), at_(mesh.CoordinatesOf(rank)), groups_(MakeParallelGroups(mesh, rank, factory)) {
    const topology::PipelinePartition partition =
        *topology::PartitionLayers(static_cast<int>(arch.num_layers), layout.sizes.pp, layout.vpp);
    std::vector<std::vector<arch::Piece>> chunk_pieces;
    std::vector<arch::Piece> all;
    for (const topology::PipelineStage& stage : partition.OfRank(at_.pp)) {
      chunk_pieces.push_back(parallel::PiecesOfStage(stage));
      all.insert(all.end(), chunk_pieces.back().begin(), chunk_pieces.back().end());
    }
    auto store = parallel::FlatStore::Create(arch::BuildParamTable(arch), all, mesh, rank, groups_,
                                             {.shard_optimizer = layout.shard, .bucket_elements = 5000});
    if (!store.ok()) throw std::runtime_error(std::string(store.status().message()));
    store_ = *std::move(store);
    store_->InitializeWeights(3);
    parallel::ParallelLayerFactory layers([this](const std::string& group) { return store_->Handle(group); }, groups_,
                                          {.vocab_size = arch.vocab_size});
    std::vector<model::StagePieces> chunks;
    for (const auto& pieces : chunk_pieces) chunks.push_back(model::BuildDecoder(arch, pieces, layers));
    runner_ = std::make_unique<parallel::PipelineRunner>(std::move(chunks), *store_, groups_,
                                                         parallel::PipelineOptions{.hidden_size = arch.hidden_size});
    optimizer_ = std::make_unique<optim::AdamW>(*store_, groups_, optim::AdamWOptions{.max_grad_norm = 0.5});
  }

  void Train(Result& result, std::mutex& mutex) {
    const topology::PipelineSchedule schedule = ScheduleOf(layout_, MicroBatches());
    for (int step = 1; step <= kSteps; ++step) {
      double weights = 0;
      for (int i = 0; i < kSamples; ++i) weights += MakeSample(i, arch_.vocab_size).weights.sum().item<double>();
      parallel::StepInput input = Feed(step);
      input.loss_scale = 1 / weights;
      const at::Tensor loss = runner_->TrainStep(schedule, input);
      if (step == 1) {
        std::lock_guard lock(mutex);
        CollectGradients(*store_, result.gradients);
      }
      const optim::StepOutcome outcome = optimizer_->Step(2e-3, loss);
      const double mean = parallel::SumOverReplicasAndStages(loss, groups_).item<double>() / weights;
      if (groups_.world->rank() != 0) continue;
      result.losses.push_back(mean);
      result.norms.push_back(outcome.grad_norm.item<double>());
    }
    const at::Tensor loss =
        runner_->Evaluate(*topology::ForwardOnly(layout_.sizes.pp, layout_.vpp, MicroBatches()), Feed(kSteps + 1));
    const double sum = parallel::SumOverReplicasAndStages(loss, groups_).item<double>();
    if (groups_.world->rank() == 0) result.evaluation = sum;
  }

 private:
  int MicroBatches() const { return kSamples / (layout_.sizes.dp * layout_.rows_per_micro_batch); }

  parallel::StepInput Feed(int step) const {
    const auto micro_batch = [this, step](int index) {
      std::vector<int64_t> samples;
      for (int row = 0; row < layout_.rows_per_micro_batch; ++row) {
        const int in_batch = (index * layout_.sizes.dp + at_.dp) * layout_.rows_per_micro_batch + row;
        samples.push_back(int64_t{step - 1} * kSamples + in_batch);
      }
      return MakeMicroBatch(samples, arch_.vocab_size);
    };
    return {.micro_batch = micro_batch, .seed = 5, .step = step};
  }

  arch::ModelArch arch_;
  Layout layout_;
  topology::Coordinates at_;
  comm::ParallelGroups groups_;
  std::unique_ptr<parallel::FlatStore> store_;
  std::unique_ptr<parallel::PipelineRunner> runner_;
  std::unique_ptr<optim::AdamW> optimizer_;
};

Result Train(const arch::ModelArch& arch, const Layout& layout) {
  Result result;
  std::mutex mutex;
  const topology::Mesh mesh = *topology::Mesh::Create(layout.sizes);
  comm::RunRanks(mesh.world(), [&](int rank, comm::GroupFactory& factory) {
    RankRun(arch, layout, mesh, rank, factory).Train(result, mutex);
  });
  return result;
}

void ExpectEqual(const Result& one, const Result& other, const std::string& name) {
  ASSERT_EQ(other.losses.size(), static_cast<size_t>(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(other.losses[step] / one.losses[step], 1.0, 1e-5) << name << ", loss of step " << step + 1;
  }
  EXPECT_NEAR(other.norms[0] / one.norms[0], 1.0, 1e-5) << name << ", gradient norm of step 1";
  EXPECT_NEAR(other.evaluation / one.evaluation, 1.0, 1e-5) << name << ", evaluation";
  ASSERT_EQ(other.gradients.size(), one.gradients.size());
  for (const auto& [tensor, expected] : one.gradients) {
    EXPECT_LE(RelativeError(other.gradients.at(tensor), expected), 1e-5) << name << ", gradient of " << tensor;
  }
}

arch::ModelArch Llama() {
  arch::ModelArch arch = *arch::FindPreset("tiny_llama");
  arch.vocab_size = 261;  // does not divide over two ranks
  return arch;
}

arch::ModelArch TiedQwen3() {
  arch::ModelArch arch = *arch::FindPreset("tiny_qwen3");
  arch.untie_embeddings_and_output_weights = false;
  return arch;
}

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {.sizes = {.dp = 2}},
      {.sizes = {.dp = 4}, .shard = false},
      {.sizes = {.tp = 2}},
      {.sizes = {.tp = 4}},  // more ranks than key/value heads
      {.sizes = {.pp = 2}},
      {.sizes = {.dp = 2}, .rows_per_micro_batch = 2},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2}},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2}, .shard = false},
  };
  return layouts;
}

class LayoutEquivalence : public ::testing::TestWithParam<std::string> {};

TEST_P(LayoutEquivalence, EqualsOneRank) {
  const arch::ModelArch arch = GetParam() == "llama" ? Llama() : TiedQwen3();
  const Result one = Train(arch, {});
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Layout& layout : Layouts()) ExpectEqual(one, Train(arch, layout), layout.Text());
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutEquivalence, ::testing::Values("llama", "tied_qwen3"),
                         [](const auto& model) { return model.param; });

TEST(LayoutEquivalenceMore, ShardingTheOptimizerChangesNoBit) {
  for (const topology::MeshSizes sizes :
       {topology::MeshSizes{.dp = 4}, topology::MeshSizes{.tp = 2, .dp = 2, .pp = 2}}) {
    const Result sharded = Train(TiedQwen3(), {.sizes = sizes});
    const Result replicated = Train(TiedQwen3(), {.sizes = sizes, .shard = false});
    EXPECT_EQ(sharded.losses, replicated.losses);
    EXPECT_EQ(sharded.norms, replicated.norms);
    EXPECT_EQ(sharded.evaluation, replicated.evaluation);
  }
}

TEST(LayoutEquivalenceMore, AScheduleOfAnotherShapeIsRefused) {
  const topology::Mesh mesh = *topology::Mesh::Create({});
  comm::RunRanks(1, [&](int rank, comm::GroupFactory& factory) {
    const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    auto store =
        *parallel::FlatStore::Create(arch::BuildParamTable(Llama()), model::AllPieces(Llama()), mesh, rank, groups, {});
    parallel::PipelineRunner runner({}, *store, groups, {});
    EXPECT_THROW(runner.TrainStep(*topology::OneForwardOneBackward(2, 4), {}), c10::Error);
  });
}

TEST(LayoutEquivalenceMore, HoldsWithDropout) {
  arch::ModelArch arch = TiedQwen3();
  arch.hidden_dropout = 0.2;
  arch.attention_dropout = 0.1;
  const Result one = Train(arch, {});
  EXPECT_GT(std::abs(Train(TiedQwen3(), {}).losses[0] - one.losses[0]), 1e-4);  // it does something
  for (const Layout& layout : {Layout{.sizes = {.tp = 2, .pp = 2}}, Layout{.sizes = {.dp = 2}}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

TEST(LayoutEquivalenceMore, HoldsWithVirtualStages) {
  arch::ModelArch arch = Llama();
  arch.num_layers = 5;  // uneven
  const Result one = Train(arch, {});
  for (const Layout& layout : {Layout{.sizes = {.pp = 2}, .vpp = 2}, Layout{.sizes = {.dp = 2, .pp = 2}, .vpp = 2},
                               Layout{.sizes = {.pp = 4}}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

// Case L1: micro-batches weigh by their tokens, so how a global batch is cut into them changes nothing. (Two of the
// four samples have no or few tokens: a mean of means would be far off.)
TEST(LayoutEquivalenceMore, L1AccumulationWeighsTokens) {
  const Result one = Train(Llama(), {.rows_per_micro_batch = kSamples});
  for (const int rows : {1, 2}) ExpectEqual(one, Train(Llama(), {.rows_per_micro_batch = rows}), absl::StrCat(rows));
}

// Case L7: 261 entries on two tensor ranks; padding takes no part in the loss.
TEST(LayoutEquivalenceMore, L7VocabularyThatDoesNotDivide) {
  ExpectEqual(Train(Llama(), {}), Train(Llama(), {.sizes = {.tp = 2}}), "tp 2");
}

// The same as processes over Gloo: each rank trains its part, rank 0 prints what it saw.
SLIPWAY_RANK_BODY(TrainOverGloo) {
  return slipway::testing::WithGroups(rank, absl::Seconds(30),
                                      [&](const comm::ProcessRendezvous&, comm::GroupFactory& factory) {
                                        Layout layout{.sizes = {.pp = 2}};
                                        (absl::EndsWith(rank.argument, ":dp") ? layout.sizes.dp : layout.sizes.tp) = 2;
                                        const topology::Mesh mesh = *topology::Mesh::Create(layout.sizes);
                                        Result result;
                                        std::mutex mutex;
                                        RankRun(TiedQwen3(), layout, mesh, rank.rank, factory).Train(result, mutex);
                                        std::cout << std::setprecision(17);
                                        for (const double loss : result.losses) std::cout << "loss " << loss << "\n";
                                        std::cout << "evaluation " << result.evaluation << std::endl;
                                        return 0;
                                      });
}

void ExpectOverGloo(const Result& one, const std::string& axis) {
  slipway::testing::ListeningSocket socket = slipway::testing::Listen();
  slipway::testing::RankProcesses ranks("TrainOverGloo", 4, absl::StrCat(socket.Argument(), ":", axis));
  socket.fd.reset();
  const std::vector<slipway::testing::RankExit> exits = ranks.WaitAll(std::chrono::seconds(120));
  for (const slipway::testing::RankExit& exit : exits) ASSERT_EQ(exit.code, 0) << exit.output;
  std::vector<double> losses;
  double evaluation = 0;
  for (const absl::string_view line : absl::StrSplit(exits[0].output, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    double value = 0;
    if (words.size() != 2 || !absl::SimpleAtod(words[1], &value)) continue;
    if (words[0] == "loss") losses.push_back(value);
    if (words[0] == "evaluation") evaluation = value;
  }
  ASSERT_EQ(losses.size(), one.losses.size()) << exits[0].output;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / one.losses[i], 1.0, 1e-5) << axis;
  EXPECT_NEAR(evaluation / one.evaluation, 1.0, 1e-5) << axis;
}

TEST(LayoutEquivalenceMore, HoldsOverGlooProcesses) {
  const Result one = Train(TiedQwen3(), {});
  ExpectOverGloo(one, "tp");
  ExpectOverGloo(one, "dp");
}

}  // namespace
}  // namespace slipway::engine
