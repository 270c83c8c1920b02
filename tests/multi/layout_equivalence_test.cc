// Loss and gradients do not depend on how a job is laid out: every layout of tensor, pipeline and data parallelism,
// with sharded and with replicated optimizer state, against one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/comm/thread_communicator.h"
#include "engine/parallel/pipeline_runner.h"
#include "tests/multi/layout_harness.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/rank_process.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: as in the harness

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {.sizes = {.dp = 2}},
      {.sizes = {.dp = 4}, .sharding = arch::Sharding::kNoShard},
      {.sizes = {.tp = 2}},
      {.sizes = {.tp = 4}},  // more ranks than key/value heads
      {.sizes = {.pp = 2}},
      {.sizes = {.dp = 2, .pp = 2}},
      {.sizes = {.dp = 2}, .rows_per_micro_batch = 2},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2}},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2}, .sharding = arch::Sharding::kNoShard},
      {.sizes = {.tp = 2}, .tp_comm_overlap = true},
      {.sizes = {.tp = 2}, .rows_per_micro_batch = 2, .sequence_parallel = true},
      {.sizes = {.tp = 4}, .sequence_parallel = true, .tp_comm_overlap = true},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2}, .sequence_parallel = true, .tp_comm_overlap = true},
      {.sizes = {.tp = 2, .dp = 2}, .sharding = arch::Sharding::kNoShard, .sequence_parallel = true},
      {.sizes = {.tp = 2, .dp = 2}, .sharding = arch::Sharding::kOptimGradsParams, .sequence_parallel = true},
  };
  return layouts;
}

class LayoutEquivalence : public ::testing::TestWithParam<std::string> {};

TEST_P(LayoutEquivalence, EqualsOneRank) {
  const arch::ModelArch arch = GetParam() == "llama" ? MatrixLlama() : MatrixTiedQwen3();
  const LayoutResult one = Train(arch, {});
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Layout& layout : Layouts()) ExpectEqual(one, Train(arch, layout), layout.Text());
}

constexpr nn::ContextComm kContextComms[] = {nn::ContextComm::kRing, nn::ContextComm::kAllGather,
                                             nn::ContextComm::kAllToAll};

// Rows of 24, 17, 9 and 22 tokens, of which two have few trained tokens or none: some rank's share of a micro-batch has
// no loss at all.
TEST_P(LayoutEquivalence, ContextParallelRanksEqualOne) {
  const arch::ModelArch arch = GetParam() == "llama" ? MatrixLlama() : MatrixTiedQwen3();
  const LayoutResult even = Train(arch, {}), ragged = Train(arch, {.ragged = true});
  for (const nn::ContextComm comm : kContextComms) {
    for (const Layout& layout :
         {Layout{.sizes = {.cp = 2}, .cp_comm = comm}, Layout{.sizes = {.cp = 4}, .cp_comm = comm},
          Layout{.sizes = {.cp = 4}, .rows_per_micro_batch = 4, .cp_comm = comm, .ragged = true},
          Layout{.sizes = {.cp = 2, .pp = 2}, .rows_per_micro_batch = 2, .cp_comm = comm, .ragged = true},
          Layout{.sizes = {.tp = 2, .cp = 2, .dp = 2}, .cp_comm = comm, .ragged = true},
          Layout{.sizes = {.tp = 2, .cp = 2, .dp = 2},
          .sharding = arch::Sharding::kNoShard,
          .sequence_parallel = true,
          .cp_comm = comm},
          Layout{.sizes = {.cp = 2, .dp = 2},
          .sharding = arch::Sharding::kOptimGradsParams,
          .cp_comm = comm,
          .ragged = true}}) {
      ExpectEqual(layout.ragged ? ragged : even, Train(arch, layout), layout.Text());
    }
  }
}
TEST(LayoutEquivalenceMore, AScheduleOfAnotherShapeIsRefused) {
  const topology::Mesh mesh = *topology::Mesh::Create({});
  comm::RunRanks(1, [&](int rank, comm::GroupFactory& factory) {
    const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    auto store = *parallel::FlatStore::Create(arch::BuildParamTable(MatrixLlama()), model::AllPieces(MatrixLlama()),
                                              mesh, rank, groups, {});
    parallel::PipelineRunner runner({}, *store, groups, {});
    EXPECT_THROW(runner.TrainStep(*topology::OneForwardOneBackward(2, 4), {}), c10::Error);
  });
}

TEST(LayoutEquivalenceMore, HoldsWithDropout) {
  arch::ModelArch arch = MatrixTiedQwen3();
  arch.hidden_dropout = 0.2;
  arch.attention_dropout = 0.1;
  const LayoutResult one = Train(arch, {});
  EXPECT_GT(std::abs(Train(MatrixTiedQwen3(), {}).losses[0] - one.losses[0]), 1e-4);  // it does something
  for (const Layout& layout :
       {Layout{.sizes = {.tp = 2, .pp = 2}}, Layout{.sizes = {.dp = 2}},
        Layout{.sizes = {.tp = 2, .pp = 2}, .sequence_parallel = true},
        Layout{.sizes = {.tp = 2, .cp = 2}, .sequence_parallel = true, .cp_comm = nn::ContextComm::kAllToAll}}) {
    ExpectEqual(one, Train(arch, layout), layout.Text());
  }
}

// Seven layers, which no number of stages divides; the second model ties the first stage's embedding to the last one's
// output layer.
TEST_P(LayoutEquivalence, HoldsOnPipelines) {
  arch::ModelArch arch = GetParam() == "llama" ? MatrixLlama() : MatrixTiedQwen3();
  arch.num_layers = 7;
  const LayoutResult one = Train(arch, {});
  const std::vector<Layout> layouts = {
      {.sizes = {.pp = 2}},
      {.sizes = {.pp = 4}},
      {.sizes = {.pp = 2}, .vpp = 2},
      {.sizes = {.dp = 2, .pp = 2}, .vpp = 2},
      {.sizes = {.tp = 2, .pp = 2}, .vpp = 2},
      {.sizes = {.tp = 2, .pp = 2}, .vpp = 2, .sequence_parallel = true},
      {.sizes = {.cp = 2, .pp = 2}, .vpp = 2},
      {.sizes = {.pp = 2}, .vpp = 3, .vpp_group = 4},
      {.sizes = {.pp = 2}, .pipeline_layout = "Et|t*6L"},
      {.sizes = {.pp = 4}, .pipeline_layout = "Et*4||t*3|L"},  // the second rank has no parameter at all
      {.sizes = {.pp = 2}, .vpp = 2, .pipeline_layout = "E|t*3|t*4|L"},
      {.sizes = {.pp = 2}, .vpp = 4, .pipeline_layout = "Et||(t|)*2|t,t|t*2|L"},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2, .etp = 2}, .order = "tp-cp-ep-pp-dp"},
      {.sizes = {.tp = 2, .dp = 2, .pp = 2, .etp = 2}, .vpp = 2, .order = "pp-dp-tp"},
  };
  for (const Layout& layout : layouts) ExpectEqual(one, Train(arch, layout), layout.Text());
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutEquivalence, ::testing::Values("llama", "tied_qwen3"),
                         [](const auto& model) { return model.param; });

// Case L1: micro-batches weigh by their tokens, so how a global batch is cut into them changes nothing. (Two of the
// four samples have no or few tokens: a mean of means would be far off.)
TEST(LayoutEquivalenceMore, L1AccumulationWeighsTokens) {
  const LayoutResult one = Train(MatrixLlama(), {.rows_per_micro_batch = kMatrixSamples});
  for (const int rows : {1, 2})
    ExpectEqual(one, Train(MatrixLlama(), {.rows_per_micro_batch = rows}), absl::StrCat(rows));
}

// Case L7: 261 entries on two tensor ranks; padding takes no part in the loss.
TEST(LayoutEquivalenceMore, L7VocabularyThatDoesNotDivide) {
  ExpectEqual(Train(MatrixLlama(), {}), Train(MatrixLlama(), {.sizes = {.tp = 2}}), "tp 2");
}

arch::ModelArch FourLayers() {
  arch::ModelArch arch = MatrixTiedQwen3();
  arch.num_layers = 4;
  return arch;
}

// The same as processes over Gloo: each rank trains its part, rank 0 prints what it saw.
SLIPWAY_RANK_BODY(TrainOverGloo) {
  return WithGroups(rank, absl::Seconds(30), [&](const comm::ProcessRendezvous&, comm::GroupFactory& factory) {
    Layout layout{.sizes = {.pp = 2}};
    if (absl::EndsWith(rank.argument, ":dp")) layout.sizes.dp = 2;
    if (absl::EndsWith(rank.argument, ":sharded")) {
      layout.sizes.dp = 2;
      layout.sharding = arch::Sharding::kOptimGradsParams;
    }
    if (absl::EndsWith(rank.argument, ":cp")) layout.sizes.cp = 2;
    if (absl::EndsWith(rank.argument, ":tp")) {
      layout.sizes.tp = 2;
      layout.sequence_parallel = layout.tp_comm_overlap = true;
    }
    // Groups of four on two stages: messages run ahead, and a send of Gloo waits for its receive.
    if (absl::EndsWith(rank.argument, ":vpp")) layout.sizes.tp = 2, layout.vpp = 2, layout.vpp_group = 4;
    const LayoutResult result = TrainRank(FourLayers(), layout, rank.rank, factory);
    std::cout << std::setprecision(17);
    for (const double loss : result.losses) std::cout << "loss " << loss << "\n";
    std::cout << "evaluation " << result.evaluation << std::endl;
    return 0;
  });
}

void ExpectOverGloo(const LayoutResult& one, const std::string& axis) {
  ListeningSocket socket = Listen();
  RankProcesses ranks("TrainOverGloo", 4, absl::StrCat(socket.Argument(), ":", axis));
  socket.fd.reset();
  const std::vector<RankExit> exits = ranks.WaitAll(std::chrono::seconds(120));
  for (const RankExit& exit : exits) ASSERT_EQ(exit.code, 0) << exit.output;
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
  const LayoutResult one = Train(FourLayers(), {});
  ExpectOverGloo(one, "tp");
  ExpectOverGloo(one, "dp");
  ExpectOverGloo(one, "sharded");
  ExpectOverGloo(one, "vpp");
  ExpectOverGloo(one, "cp");
}

}  // namespace
}  // namespace slipway::testing
