// What is computed again in the backward pass changes no bit of losses and gradients, and keeps fewer bytes.
#include "engine/model/recompute.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/arch/presets.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "tests/support/live_bytes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::parallel {
namespace {

using ::slipway::testing::LiveBytes;
using ::slipway::testing::TensorEqual;
using Layers = nn::RecomputeOptions::Layers;

arch::ModelArch Arch(const std::string& preset) {
  arch::ModelArch arch = *arch::FindPreset(preset);
  arch.num_layers = 5;
  arch.hidden_dropout = 0.1;
  return arch;
}

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // by bucket
  int64_t kept_bytes = 0;             // between forward and backward
  int64_t left_bytes = 0;             // after the backward
};

// One micro-batch. frozen: the embedding wants no gradient, so that the first layer's input has none.
Outcome Step(const arch::ModelArch& arch, const nn::RecomputeOptions& recompute, bool frozen = false) {
  const topology::Mesh mesh = *topology::Mesh::Create({});
  const comm::ParallelGroups groups = comm::MakeSoloGroups();
  std::vector<arch::ParamSpec> table = arch::BuildParamTable(arch);
  if (frozen) table[0].trainable = false;
  auto store = *FlatStore::Create(table, model::AllPieces(arch), mesh, 0, groups, {});
  store->InitializeWeights(3);
  ParallelLayerFactory layers([&](const std::string& group) { return store->Handle(group); }, groups,
                              {.vocab_size = arch.vocab_size, .recompute = recompute});
  const model::StagePieces pieces = model::BuildDecoder(arch, model::AllPieces(arch), layers);
  Outcome outcome;
  LiveBytes live;
  store->BeginStep();
  at::Tensor loss;
  {
    // The batch is gone when the backward runs.
    const at::Tensor tokens = at::arange(48, at::kLong).mul_(37).remainder_(arch.vocab_size);
    const model::MicroBatch batch{tokens, tokens.flip(0), at::ones({48}),
                                  nn::MakeSequenceLayout({30, 18}, {4, 7}, 48, at::kCPU)};
    const nn::ForwardContext context{.layout = &batch.layout, .training = true, .seed = 5, .step = 2};
    loss = model::ForwardRecomputing(pieces, at::Tensor(), batch, context, recompute);
  }
  outcome.kept_bytes = live.now();
  store->BeginLastBackward(model::AllPieces(arch));
  loss.backward();
  store->FinishGradients();
  outcome.loss = loss.detach();
  loss = at::Tensor();
  outcome.left_bytes = live.now();
  for (const Bucket& bucket : store->buckets()) {
    if (bucket.trainable) outcome.gradients.push_back(bucket.main_grads.clone());
  }
  return outcome;
}

void ExpectSame(const Outcome& plain, const Outcome& other, const std::string& name) {
  EXPECT_THAT(other.loss, TensorEqual(plain.loss)) << name;
  ASSERT_EQ(other.gradients.size(), plain.gradients.size());
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_GT(plain.gradients[i].abs().sum().item<double>(), 0);
    EXPECT_THAT(other.gradients[i], TensorEqual(plain.gradients[i])) << name << ", bucket " << i;
  }
  EXPECT_LE(other.left_bytes, 64) << name;  // the loss itself
}

const std::map<std::string, nn::RecomputeOptions>& Modes() {
  static const std::map<std::string, nn::RecomputeOptions> modes = {
      {"uniform 1", {.layers = Layers::kUniform, .num_layers = 1}},
      {"uniform 2", {.layers = Layers::kUniform, .num_layers = 2}},
      {"uniform 9", {.layers = Layers::kUniform, .num_layers = 9}},
      {"block 2", {.layers = Layers::kBlock, .num_layers = 2}},
      {"attention", {.attention = true}},
      {"norms", {.norms = true}},
      {"activation", {.activation = true}},
      {"all parts", {.attention = true, .norms = true, .activation = true}},
  };
  return modes;
}

class RecomputeTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, RecomputeTest, ::testing::Values("tiny_llama", "tiny_qwen3"),
                         [](const auto& model) { return model.param; });

TEST_P(RecomputeTest, SameBitsFewerBytes) {
  const Outcome plain = Step(Arch(GetParam()), {});
  std::map<std::string, int64_t> kept;
  for (const auto& [name, mode] : Modes()) {
    const Outcome outcome = Step(Arch(GetParam()), mode);
    ExpectSame(plain, outcome, name);
    EXPECT_LT(outcome.kept_bytes, plain.kept_bytes) << name;
    kept[name] = outcome.kept_bytes;
  }
  EXPECT_LT(kept["uniform 1"], plain.kept_bytes / 2);
  EXPECT_LT(kept["uniform 2"], kept["uniform 1"]);
  EXPECT_LT(kept["uniform 1"], kept["block 2"]);
  EXPECT_LT(kept["all parts"], std::min({kept["attention"], kept["norms"], kept["activation"]}));
}

TEST_P(RecomputeTest, DropoutOfAttentionIsDrawnAgain) {
  arch::ModelArch arch = Arch(GetParam());
  arch.attention_dropout = 0.1;
  const Outcome plain = Step(arch, {});
  for (const char* name : {"uniform 2", "attention"}) ExpectSame(plain, Step(arch, Modes().at(name)), name);
}

TEST_P(RecomputeTest, ParametersAreTrainedBehindAFrozenEmbedding) {
  const Outcome plain = Step(Arch(GetParam()), {}, /*frozen=*/true);
  for (const char* name : {"uniform 2", "all parts"}) {
    ExpectSame(plain, Step(Arch(GetParam()), Modes().at(name), /*frozen=*/true), name);
  }
}

TEST_P(RecomputeTest, NothingHappensWithoutGradients) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({3});
  int calls = 0;
  const at::Tensor y = nn::Recompute(x, [&](const at::Tensor& input) {
    ++calls;
    return input * 2;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(y.requires_grad());
}

}  // namespace
}  // namespace slipway::engine::parallel
