#include "engine/arch/model_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/arch/param_spec.h"
#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

ModelArch Preset(std::string_view name) { return FindPreset(name).value(); }

TEST(ParameterCount, PublishedModels) {
  EXPECT_EQ(ParameterCount(Preset("smollm2_135m")), 134'515'008);
  EXPECT_EQ(ParameterCount(Preset("qwen3_0_6b")), 596'049'920);
  EXPECT_EQ(ParameterCount(Preset("llama3_1_8b")), 8'030'261'248);
  EXPECT_EQ(ParameterCount(Preset("llama3_2_1b")), 1'235'814'400);
  EXPECT_EQ(ParameterCount(Preset("qwen2_5_0_5b")), 494'032'768);
  EXPECT_EQ(ParameterCount(Preset("qwen2_5_7b")), 7'615'616'512);
  EXPECT_EQ(ParameterCount(Preset("qwen3_8b")), 8'190'735'360);
}

TEST(TrainingFlops, ByHand) {
  // hidden 64, 4 heads of 16 (q 64, kv 32), ffn 160, 2 layers; 3 sequences of 10 tokens.
  const TrainingFlops flops = FlopsOfBatch(Preset("tiny_llama"), 3, 10, 384);
  EXPECT_EQ(flops.attention_projections, 6.0 * 30 * 2 * (64 * (64 + 2 * 32) + 64 * 64));
  EXPECT_EQ(flops.attention_scores, 6.0 * 3 * 100 * 2 * 64);
  EXPECT_EQ(flops.mlp, 6.0 * 30 * 2 * 3 * 64 * 160);
  EXPECT_EQ(flops.logits, 6.0 * 30 * 64 * 384);
  EXPECT_DOUBLE_EQ(flops.Total(), 30 * FlopsPerToken(Preset("tiny_llama"), 10, 384));
}

TEST(TrainingFlops, AboutSixTimesTheMatrixParameters) {
  const ModelArch arch = Preset("llama3_1_8b");
  const double matrices = static_cast<double>(ParameterCount(arch) - arch.vocab_size * arch.hidden_size);
  const TrainingFlops flops = FlopsOfTokens(arch, 1, 0, arch.vocab_size);
  EXPECT_NEAR(flops.Total() / (6 * matrices), 1, 1e-4);
}

TEST(EstimateMemory, StateOfOneRank) {
  const ModelArch arch = Preset("qwen3_0_6b");
  MemoryOptions options{.bytes = StateBytes::Bf16Mixed(), .seq_length = 4096};
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate estimate, EstimateMemory(arch, options, 0));
  EXPECT_EQ(estimate.parameters, ParameterCount(arch));  // 151936 is a multiple of 128
  const auto parameters = static_cast<double>(estimate.parameters);
  EXPECT_EQ(estimate.weights, 2 * parameters);
  EXPECT_EQ(estimate.gradients, 4 * parameters);
  EXPECT_EQ(estimate.optimizer, 12 * parameters);
  EXPECT_EQ(estimate.logits, 220.0 * 151936 * 6);  // 2^25 of them are those of 220 tokens
  EXPECT_GT(estimate.activations, 0);
  options.bytes = StateBytes::Fp32();
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate fp32, EstimateMemory(arch, options, 0));
  EXPECT_EQ(fp32.weights + fp32.gradients + fp32.optimizer, 16 * parameters);
  EXPECT_EQ(fp32.activations, 2 * estimate.activations);
}

TEST(EstimateMemory, DataParallelismCutsWhatTheStrategySays) {
  const ModelArch arch = Preset("qwen3_0_6b");
  const auto estimate = [&](Sharding sharding) {
    return *EstimateMemory(arch, {.mesh = {.dp = 16}, .seq_length = 1024, .sharding = sharding}, 0);
  };
  const MemoryEstimate whole = estimate(Sharding::kNoShard), optim = estimate(Sharding::kOptim);
  const MemoryEstimate grads = estimate(Sharding::kOptimGrads), params = estimate(Sharding::kOptimGradsParams);
  EXPECT_EQ(optim.optimizer * 16, whole.optimizer);
  EXPECT_EQ(optim.weights + optim.gradients, whole.weights + whole.gradients);
  EXPECT_EQ(grads.weights, whole.weights);
  EXPECT_LT(grads.gradients, whole.gradients);
  // A sixteenth, and twice the embedding.
  EXPECT_EQ(params.weights, whole.weights / 16 + 2.0 * 151936 * 1024 * 4);
  EXPECT_EQ(params.gradients, grads.gradients);
  EXPECT_EQ(params.optimizer, optim.optimizer);
}

TEST(EstimateMemory, PipelineStagesAddUpWithOneMoreCopyOfATiedEmbedding) {
  const ModelArch arch = Preset("qwen3_0_6b");
  const MemoryOptions options{.mesh = {.pp = 4}, .seq_length = 1024, .num_microbatches = 8};
  int64_t total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_OK_AND_ASSIGN(const MemoryEstimate estimate, EstimateMemory(arch, options, rank));
    total += estimate.parameters;
    EXPECT_EQ(estimate.logits > 0, rank == 3);
  }
  EXPECT_EQ(total, ParameterCount(arch) + arch.vocab_size * arch.hidden_size);
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate first, EstimateMemory(arch, options, 0));
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate last, EstimateMemory(arch, options, 3));
  EXPECT_EQ(first.activations, 4 * last.activations);  // the first stage holds four micro-batches, the last one
}

// A rank of an interleaved pipeline holds more micro-batches than one of a plain pipeline, each of a part of its layers.
TEST(EstimateMemory, VirtualStagesAndLayoutStrings) {
  const ModelArch arch = Preset("qwen3_0_6b");
  MemoryOptions options{.mesh = {.pp = 2}, .seq_length = 1024, .num_microbatches = 8};
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate plain, EstimateMemory(arch, options, 0));
  options.partition = *topology::PartitionLayers(28, 2, 2);
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate interleaved, EstimateMemory(arch, options, 0));
  EXPECT_EQ(interleaved.parameters, plain.parameters);
  EXPECT_EQ(interleaved.activations * 4, plain.activations * 5);  // 2 · 14 layers against 5 · 7
  options.partition = *topology::PartitionByLayout(28, 2, "E|t*28L");
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate none, EstimateMemory(arch, options, 0));
  EXPECT_EQ(none.parameters, arch.vocab_size * arch.hidden_size);
  EXPECT_EQ(none.activations, 0);
}

TEST(EstimateMemory, RecomputeTensorAndSequenceParallelismSave) {
  const ModelArch arch = Preset("llama3_1_8b");
  MemoryOptions options{.mesh = {.tp = 4}, .bytes = StateBytes::Bf16Mixed(), .seq_length = 8192};
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate tensor, EstimatePeakMemory(arch, options));
  options.sequence_parallel = true;
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate sequence, EstimatePeakMemory(arch, options));
  options.recompute = Recompute::kFull;
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate recomputed, EstimatePeakMemory(arch, options));
  options.fused_attention = false;
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate scores, EstimatePeakMemory(arch, options));
  EXPECT_LT(sequence.activations, tensor.activations);
  EXPECT_LT(recomputed.activations, sequence.activations / 5);
  EXPECT_GT(scores.activations, recomputed.activations);
  EXPECT_NEAR(static_cast<double>(tensor.parameters) * 4 / static_cast<double>(ParameterCount(arch)), 1, 1e-3);
}

TEST(EstimateMemory, RefusesLayoutsThatDoNotDivide) {
  const ModelArch arch = Preset("tiny_llama");
  EXPECT_THAT(EstimatePeakMemory(arch, {.mesh = {.tp = 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 heads")));
  EXPECT_THAT(EstimatePeakMemory(arch, {.mesh = {.pp = 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 layers")));
  EXPECT_THAT(EstimatePeakMemory(arch, {.mesh = {.pp = 0}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pp is 0")));
  EXPECT_THAT(EstimateMemory(arch, {}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 of 1")));
}

}  // namespace
}  // namespace slipway::engine::arch
