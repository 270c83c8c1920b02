// A decoder over tensor-parallel ranks (threads) against the same decoder on one rank: loss, logits and every gradient.
#include "engine/parallel/parallel_layer_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/model/stage_piece.h"
#include "tests/support/local_model.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::parallel {
namespace {

using ::slipway::testing::LocalModel;
using ::slipway::testing::LocalShare;
using ::slipway::testing::NamedTensors;
using ::slipway::testing::RandomWeights;
using ::slipway::testing::TensorNear;

arch::ModelArch TinyArch(arch::Family family) {
  arch::ModelArch arch;
  arch.family = family;
  arch.num_layers = 2;
  arch.hidden_size = 24;
  arch.num_attention_heads = 4;
  arch.num_query_groups = 2;
  arch.kv_channels = 8;  // not hidden_size / num_attention_heads
  arch.ffn_hidden_size = 20;
  arch.vocab_size = 261;  // divides by nothing
  arch.max_position_embeddings = 64;
  arch.rotary_base = 10000;
  arch.norm_epsilon = 1e-5;
  arch.add_qkv_bias = family == arch::Family::kQwen2;
  arch.qk_layernorm = family == arch::Family::kQwen3;
  arch.untie_embeddings_and_output_weights = family == arch::Family::kQwen2;
  return arch;
}

model::MicroBatch RandomBatch(const arch::ModelArch& arch) {
  model::MicroBatch batch;
  batch.layout = nn::MakeSequenceLayout({7, 4}, {3, 8}, 12, at::kCPU);
  at::Generator generator = at::detail::createCPUGenerator(5);
  batch.tokens = at::randint(0, arch.vocab_size, {12}, generator, at::kLong);
  batch.tokens[0] = arch.vocab_size - 1;
  batch.labels = batch.tokens.roll(-1);
  batch.weights = at::tensor({1.f, 1.f, 0.f, 1.f, .5f, 1.f, 0.f, 1.f, 1.f, 1.f, 0.f, 0.f});
  return batch;
}

struct Outcome {
  at::Tensor loss, logits;
  NamedTensors gradients;
};

Outcome RunModel(const arch::ModelArch& arch, const NamedTensors& weights, const comm::CommPtr& tp,
                 int64_t divisible_by, bool sequence_parallel = false) {
  LocalModel local(arch::BuildParamTable(arch), weights,
                   {.rank = tp->rank(), .size = tp->size(), .make_vocab_size_divisible_by = divisible_by});
  comm::ParallelGroups groups;
  groups.tp = tp;
  ParallelLayerFactory factory(
      [&](const std::string& group) { return local.Handle(group); }, groups,
      {.vocab_size = arch.vocab_size, .logits_chunk_elements = 5 * 300, .sequence_parallel = sequence_parallel});
  const model::StagePieces pieces = model::BuildDecoder(arch, model::AllPieces(arch), factory);
  model::MicroBatch batch = RandomBatch(arch);
  const nn::ForwardContext context{.layout = &batch.layout, .seed = 17, .step = 4};
  const at::Tensor loss = model::ForwardPieces(pieces, {}, batch, context);
  (loss * 0.25).backward();
  batch.labels = at::Tensor();
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model::ForwardPieces(pieces, {}, batch, context);
  for (const auto& [group, handle] : local.handles()) {
    EXPECT_EQ(handle->registered_uses(), handle->ended_uses()) << group;
    EXPECT_EQ(handle->held(), 0) << group;
  }
  return {loss.detach(), logits, local.Gradients()};
}

void CheckAgainstOneRank(const arch::ModelArch& arch, int ranks, int64_t divisible_by, bool sequence_parallel = false) {
  const std::vector<arch::ParamSpec> table = arch::BuildParamTable(arch);
  const NamedTensors weights = RandomWeights(table, 1);
  const Outcome whole = RunModel(arch, weights, comm::MakeSelfCommunicator("tp"), 1);
  std::vector<Outcome> parts(ranks);
  comm::RunRanks(ranks, [&](int rank, comm::GroupFactory& factory) {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    parts[rank] = RunModel(arch, weights, factory.MakeGroup("tp", members), divisible_by, sequence_parallel);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(parts[rank].loss, TensorNear(whole.loss, 1e-6));
    EXPECT_THAT(parts[rank].logits, TensorNear(whole.logits, 1e-5));
    for (const arch::ParamSpec& spec : table) {
      if (spec.tied_to) continue;
      const arch::TpPlacement tp{.rank = rank, .size = ranks, .make_vocab_size_divisible_by = divisible_by};
      const int summed = arch::TpGradSumRanks(spec, ranks, sequence_parallel);
      at::Tensor gradient = at::zeros_like(parts[rank].gradients.at(spec.name));
      for (int r = rank - rank % summed; r < rank - rank % summed + summed; ++r) {
        gradient += parts[r].gradients.at(spec.name);
      }
      at::Tensor expected = LocalShare(spec, whole.gradients.at(spec.name), tp);
      expected = expected.narrow(0, 0, gradient.size(0));
      EXPECT_THAT(gradient, TensorNear(expected, 2e-5)) << spec.name << " on rank " << rank;
    }
  }
}

class FamilyTest : public ::testing::TestWithParam<arch::Family> {};
INSTANTIATE_TEST_SUITE_P(All, FamilyTest,
                         ::testing::Values(arch::Family::kLlama, arch::Family::kQwen2, arch::Family::kQwen3),
                         [](const auto& family) { return std::string(arch::FamilyName(family.param)); });

TEST_P(FamilyTest, TwoRanksEqualOne) { CheckAgainstOneRank(TinyArch(GetParam()), 2, 1); }

// More padding than one rank's rows: the last rank holds no word at all.
TEST_P(FamilyTest, RanksOfPaddingAloneChangeNothing) { CheckAgainstOneRank(TinyArch(GetParam()), 2, 300); }

// Two key/value heads over four ranks: each is held twice.
TEST_P(FamilyTest, FewerKeyValueHeadsThanRanks) { CheckAgainstOneRank(TinyArch(GetParam()), 4, 128); }

TEST_P(FamilyTest, SequenceParallelRanksEqualOne) {
  CheckAgainstOneRank(TinyArch(GetParam()), 2, 1, /*sequence_parallel=*/true);
  CheckAgainstOneRank(TinyArch(GetParam()), 4, 128, /*sequence_parallel=*/true);
}

TEST_P(FamilyTest, DropoutIsTheSameOnEveryLayout) {
  arch::ModelArch arch = TinyArch(GetParam());
  arch.hidden_dropout = 0.2;
  arch.attention_dropout = 0.1;
  CheckAgainstOneRank(arch, 2, 1);
  CheckAgainstOneRank(arch, 2, 1, /*sequence_parallel=*/true);
}

TEST_P(FamilyTest, LayersUseExactlyTheFuseGroupsOfTheTable) {
  const arch::ModelArch arch = TinyArch(GetParam());
  const std::vector<arch::ParamSpec> table = arch::BuildParamTable(arch);
  LocalModel local(table, RandomWeights(table, 1));
  comm::ParallelGroups groups;
  groups.tp = comm::MakeSelfCommunicator("tp");
  ParallelLayerFactory factory([&](const std::string& group) { return local.Handle(group); }, groups,
                               {.vocab_size = arch.vocab_size});
  const model::StagePieces pieces = model::BuildDecoder(arch, model::AllPieces(arch), factory);
  std::set<std::string> named;
  for (const arch::ParamSpec& spec : table) named.insert(spec.fuse_group.name);
  EXPECT_EQ(local.asked(), named);
  EXPECT_EQ(pieces.size(), 4u);
}

TEST(ParallelLayerFactoryTest, AMissingParameterIsNamed) {
  comm::ParallelGroups groups;
  groups.tp = comm::MakeSelfCommunicator("tp");
  ParallelLayerFactory factory([](const std::string&) { return nn::ParamPtr(); }, groups, {.vocab_size = 8});
  try {
    factory.RowLinear("layers.0.mlp.down");
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("layers.0.mlp.down"));
  }
}

TEST(ParallelLayerFactoryTest, IdsOutsideOfTheVocabularyAreNamed) {
  const arch::ModelArch arch = TinyArch(arch::Family::kLlama);
  const std::vector<arch::ParamSpec> table = arch::BuildParamTable(arch);
  LocalModel local(table, RandomWeights(table, 1));
  comm::ParallelGroups groups;
  groups.tp = comm::MakeSelfCommunicator("tp");
  ParallelLayerFactory factory([&](const std::string& group) { return local.Handle(group); }, groups,
                               {.vocab_size = arch.vocab_size});
  const auto embedding = factory.Embedding("embedding");
  const auto head = factory.Head("output_layer");
  for (const int64_t id : {int64_t{-1}, arch.vocab_size}) {
    const at::Tensor ids = at::tensor({int64_t{3}, id}, at::kLong), x = at::ones({2, arch.hidden_size});
    EXPECT_THROW(embedding->Forward(ids, {}), c10::Error);
    EXPECT_THROW(head->Loss(x, ids, at::ones({2}), {}), c10::Error);
    EXPECT_NO_THROW(head->Loss(x, ids, at::tensor({1.0f, 0.0f}), {})) << "a label without weight may be anything";
  }
}

// Both uses of a tied matrix count: its gradient is that of the embedding plus that of the output layer.
TEST(ParallelLayerFactoryTest, ATiedGradientIsTheSumOfBothUses) {
  arch::ModelArch tied = TinyArch(arch::Family::kLlama), untied = tied;
  untied.untie_embeddings_and_output_weights = true;
  NamedTensors weights = RandomWeights(arch::BuildParamTable(tied), 1);
  const Outcome shared = RunModel(tied, weights, comm::MakeSelfCommunicator("tp"), 1);
  weights[arch::kHeadName] = weights.at(arch::kEmbeddingName);
  const Outcome apart = RunModel(untied, weights, comm::MakeSelfCommunicator("tp"), 1);
  EXPECT_THAT(shared.gradients.at(arch::kEmbeddingName),
              TensorNear(apart.gradients.at(arch::kEmbeddingName) + apart.gradients.at(arch::kHeadName), 1e-6));
}

}  // namespace
}  // namespace slipway::engine::parallel
