// Generation over cached keys and values against the whole forward pass.
#include "engine/model/generation.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "tests/support/local_model.h"

namespace slipway::engine::model {
namespace {

using ::slipway::testing::LocalModel;
using ::slipway::testing::RandomWeights;
using ::testing::ElementsAre;

arch::ModelArch TinyArch() {
  arch::ModelArch arch;
  arch.family = arch::Family::kQwen3;
  arch.num_layers = 2;
  arch.hidden_size = 24;
  arch.num_attention_heads = 4;
  arch.num_query_groups = 2;
  arch.kv_channels = 8;
  arch.ffn_hidden_size = 20;
  arch.vocab_size = 50;
  arch.max_position_embeddings = 64;
  arch.rotary_base = 10000;
  arch.norm_epsilon = 1e-5;
  arch.qk_layernorm = true;
  return arch;
}

StagePieces Build(LocalModel& local, const comm::CommPtr& tp, bool sequence_parallel = false) {
  comm::ParallelGroups groups;
  groups.tp = tp;
  parallel::ParallelLayerFactory factory([&](const std::string& group) { return local.Handle(group); }, groups,
                                         {.vocab_size = TinyArch().vocab_size, .sequence_parallel = sequence_parallel});
  return BuildDecoder(TinyArch(), AllPieces(TinyArch()), factory);
}

class GenerationTest : public ::testing::Test {
 protected:
  GenerationTest()
      : local_(arch::BuildParamTable(TinyArch()), RandomWeights(arch::BuildParamTable(TinyArch()), 3, /*std=*/0.5)),
        pieces_(Build(local_, comm::MakeSelfCommunicator("tp"))) {}

  // The most likely token after `tokens`, by a forward pass over all of them.
  int64_t NextByWholeForward(const std::vector<int64_t>& tokens) {
    const at::NoGradGuard no_grad;
    const int64_t count = static_cast<int64_t>(tokens.size());
    MicroBatch batch;
    batch.tokens = at::tensor(at::ArrayRef<int64_t>(tokens), at::kLong);
    batch.layout = nn::MakeSequenceLayout({count}, {0}, count, at::kCPU);
    return ForwardPieces(pieces_, {}, batch, {.layout = &batch.layout})[count - 1].argmax().item<int64_t>();
  }

  LocalModel local_;
  StagePieces pieces_;
  const std::vector<int64_t> prompt_ = {3, 14, 15, 9, 26};
};

TEST_F(GenerationTest, GreedyEqualsTheWholeForward) {
  const std::vector<int64_t> reply = Generate(pieces_, prompt_, {.max_new_tokens = 20});
  ASSERT_EQ(reply.size(), 20u);
  std::vector<int64_t> row = prompt_;
  for (const int64_t id : reply) {
    EXPECT_EQ(id, NextByWholeForward(row));
    row.push_back(id);
  }
}

TEST_F(GenerationTest, TensorParallelRanksAgreeWithOneRank) {
  const GenerationOptions options{.max_new_tokens = 12, .temperature = 1.5, .seed = 5};
  const std::vector<int64_t> expected = Generate(pieces_, prompt_, options);
  comm::RunRanks(2, [&](int rank, comm::GroupFactory& factory) {
    const comm::CommPtr tp = factory.MakeGroup("tp", {0, 1});
    LocalModel local(arch::BuildParamTable(TinyArch()), RandomWeights(arch::BuildParamTable(TinyArch()), 3, 0.5),
                     {.rank = rank, .size = 2});
    EXPECT_EQ(Generate(Build(local, tp), prompt_, options), expected);
    // Layers of a sequence-parallel job leave a generation's few tokens (an odd number here) together.
    EXPECT_EQ(Generate(Build(local, tp, /*sequence_parallel=*/true), prompt_, options), expected);
  });
}

TEST_F(GenerationTest, TheSeedDecides) {
  GenerationOptions options{.max_new_tokens = 20, .temperature = 2, .seed = 1};
  const std::vector<int64_t> first = Generate(pieces_, prompt_, options);
  EXPECT_EQ(Generate(pieces_, prompt_, options), first);
  options.seed = 2;
  EXPECT_NE(Generate(pieces_, prompt_, options), first);
}

TEST_F(GenerationTest, StopsAtAStopTokenAndIncludesIt) {
  const std::vector<int64_t> all = Generate(pieces_, prompt_, {.max_new_tokens = 8});
  const std::vector<int64_t> reply = Generate(pieces_, prompt_, {.max_new_tokens = 8, .stop_ids = {all[0]}});
  EXPECT_THAT(reply, ElementsAre(all[0]));
}

TEST_F(GenerationTest, TheReaderSeesEachTokenAndMayEndIt) {
  std::vector<int64_t> seen;
  GenerationOptions options{.max_new_tokens = 8};
  options.on_token = [&](int64_t id) {
    seen.push_back(id);
    return seen.size() < 3;
  };
  EXPECT_EQ(Generate(pieces_, prompt_, options), seen);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(GenerationTest, NothingAskedForIsNothing) {
  EXPECT_TRUE(Generate(pieces_, prompt_, {}).empty());
  EXPECT_THROW(Generate(pieces_, {}, {.max_new_tokens = 1}), c10::Error);
}

TEST(SampleTokenTest, FollowsTheDistributionInsideTheNucleus) {
  const at::Tensor logits = at::log(at::tensor({0.05f, 0.5f, 0.15f, 0.3f}));
  const auto share = [&](double temperature, double top_p) {
    std::map<int64_t, int> counts;
    for (int i = 0; i < 1000; ++i) {
      ++counts[SampleToken(logits, temperature, top_p, (static_cast<float>(i) + 0.5f) / 1000)];
    }
    return counts;
  };
  EXPECT_THAT(share(1, 1), (std::map<int64_t, int>{{0, 50}, {1, 500}, {2, 150}, {3, 300}}));
  EXPECT_THAT(share(1, 0.75), (std::map<int64_t, int>{{1, 625}, {3, 375}}));  // 0.5 alone does not reach 0.75
  EXPECT_THAT(share(1, 0), (std::map<int64_t, int>{{1, 1000}}));
  EXPECT_THAT(share(0, 1), (std::map<int64_t, int>{{1, 1000}}));
  EXPECT_EQ(share(0.01, 1).size(), 1u);
}

TEST(SampleTokenTest, OfEqualsTheLowestId) { EXPECT_EQ(SampleToken(at::ones({5}), 0, 1, 0.5f), 0); }

}  // namespace
}  // namespace slipway::engine::model
