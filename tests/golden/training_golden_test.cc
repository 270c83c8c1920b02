// Five training steps of the golden models through the flat store, the pipeline runner and the optimizer, on several
// layouts, against transformers and torch's AdamW.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/comm/thread_communicator.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "engine/parallel/pipeline_runner.h"
#include "tests/golden/golden_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine {
namespace {

using ::slipway::testing::Golden;
using ::slipway::testing::kGoldenTolerance;
using ::slipway::testing::NamedTensors;
using ::slipway::testing::ReadGolden;
using ::slipway::testing::TensorNear;

constexpr int kSteps = 5;

// The part of a whole tensor that a share stands for, flat.
at::Tensor PartOf(const parallel::LogicalShare& share, const NamedTensors& tensors, const std::string& prefix) {
  at::Tensor part = tensors.at(prefix + share.spec->tied_to.value_or(share.spec->name));
  for (size_t dim = 0; dim < share.box.start.size(); ++dim) {
    part = part.narrow(static_cast<int64_t>(dim), share.box.start[dim], share.box.extent[dim]);
  }
  return part.reshape(-1);
}

at::Tensor WeightOf(parallel::FlatStore& store, const parallel::LogicalShare& share) {
  return store.buckets()[share.bucket].weights.narrow(0, share.offset, share.elements);
}

void Train(const Golden& golden, const topology::Mesh& mesh, int rank, comm::GroupFactory& factory) {
  const topology::MeshSizes& sizes = mesh.sizes();
  const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
  const auto partition = *topology::PartitionLayers(static_cast<int>(golden.arch.num_layers), sizes.pp, 1);
  const std::vector<arch::Piece> pieces = parallel::PiecesOfStage(partition.OfRank(mesh.CoordinatesOf(rank).pp)[0]);
  ASSERT_OK_AND_ASSIGN(auto store, parallel::FlatStore::Create(arch::BuildParamTable(golden.arch), pieces, mesh, rank,
                                                               groups, {.bucket_elements = 5000}));
  for (const parallel::LogicalShare& share : store->shares()) {
    WeightOf(*store, share).copy_(PartOf(share, golden.weights, ""));
  }
  store->AdoptWeights();
  parallel::ParallelLayerFactory layers([&](const std::string& group) { return store->Handle(group); }, groups,
                                        {.vocab_size = golden.arch.vocab_size});
  std::vector<model::StagePieces> chunks;
  chunks.push_back(model::BuildDecoder(golden.arch, pieces, layers));
  parallel::PipelineRunner runner(std::move(chunks), *store, groups, {.hidden_size = golden.arch.hidden_size});
  const auto& settings = golden.json.at("optimizer");
  optim::AdamW optimizer(*store, groups,
                         {.beta1 = settings.at("betas")[0],
                          .beta2 = settings.at("betas")[1],
                          .epsilon = settings.at("eps"),
                          .weight_decay = settings.at("weight_decay"),
                          .max_grad_norm = settings.at("clip_grad")});

  // Two rows a step: one a micro-batch, over one or two data-parallel ranks.
  const int micro_batches = 2 / sizes.dp, first_row = mesh.CoordinatesOf(rank).dp * micro_batches;
  const auto schedule = *topology::OneForwardOneBackward(sizes.pp, micro_batches);
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step + 1 << " of rank " << rank);
    const auto row = [&](const char* name, int micro_batch) {
      return golden.values.at(name)[step][first_row + micro_batch];
    };
    const parallel::StepInput input{.micro_batch =
                                        [&](int m) {
                                          const at::Tensor ids = row("input_ids", m);
                                          return model::MicroBatch{
                                              ids, row("labels", m), row("loss_mask", m),
                                              nn::MakeSequenceLayout({ids.size(0)}, {m}, ids.size(0), at::kCPU)};
                                        },
                                    .loss_scale = 1 / golden.values.at("loss_mask")[step].sum().item<double>(),
                                    .step = step + 1};
    at::Tensor loss = runner.TrainStep(schedule, input).clone();
    const optim::StepOutcome outcome = optimizer.Step(settings.at("lr"), loss);
    const auto& expected = golden.json.at("steps")[step];
    groups.dp_cp->AllReduce(loss, comm::ReduceOp::kSum)->Wait();
    groups.pp->AllReduce(loss, comm::ReduceOp::kSum)->Wait();  // only the last stage has one
    EXPECT_NEAR(loss.item<double>() * input.loss_scale / expected.at("loss").get<double>(), 1, kGoldenTolerance);
    EXPECT_NEAR(outcome.grad_norm.item<double>() / expected.at("grad_norm").get<double>(), 1, kGoldenTolerance);
    EXPECT_EQ(outcome.skipped.item<float>(), 0);
  }
  for (const parallel::LogicalShare& share : store->shares()) {
    if (share.elements == 0) continue;
    EXPECT_THAT(WeightOf(*store, share), TensorNear(PartOf(share, golden.values, "after."), kGoldenTolerance))
        << share.spec->name << " on rank " << rank;
  }
}

using Case = std::tuple<std::string, topology::MeshSizes>;
class TrainingGoldenTest : public ::testing::TestWithParam<Case> {};
std::string NameOf(const ::testing::TestParamInfo<Case>& layout) {
  const topology::MeshSizes& sizes = std::get<1>(layout.param);
  return std::get<0>(layout.param) + "_tp" + std::to_string(sizes.tp) + "_dp" + std::to_string(sizes.dp) + "_pp" +
         std::to_string(sizes.pp) + "_ep" + std::to_string(sizes.ep) + "_etp" + std::to_string(sizes.etp);
}
INSTANTIATE_TEST_SUITE_P(Dense, TrainingGoldenTest,
                         ::testing::Combine(::testing::Values("llama", "qwen2", "qwen3", "qwen3_tied"),
                                            ::testing::Values(topology::MeshSizes{}, topology::MeshSizes{.dp = 2},
                                                              topology::MeshSizes{.tp = 2, .pp = 2})),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Experts, TrainingGoldenTest,
                         ::testing::Combine(::testing::Values("qwen3_moe"),
                                            ::testing::Values(topology::MeshSizes{},
                                                              topology::MeshSizes{.dp = 2, .ep = 2},
                                                              topology::MeshSizes{.dp = 2, .etp = 2},
                                                              topology::MeshSizes{.dp = 2, .pp = 3, .ep = 2})),
                         NameOf);

TEST_P(TrainingGoldenTest, FiveStepsEqualTransformers) {
  const auto& [name, sizes] = GetParam();
  const Golden golden = ReadGolden(name);
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create(sizes));
  comm::RunRanks(mesh.world(), [&](int rank, comm::GroupFactory& factory) { Train(golden, mesh, rank, factory); });
}

}  // namespace
}  // namespace slipway::engine
