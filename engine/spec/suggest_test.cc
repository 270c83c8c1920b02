#include "engine/spec/suggest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/arch/presets.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_reader.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::spec {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024 * 1024;

absl::StatusOr<Suggestion> Suggest(const std::string& preset, int64_t batch, int64_t seq_length, int64_t gpus,
                                   double gib = 80) {
  const std::string text = absl::StrCat("name: ask\nmodel: {preset: ", preset,
                                        "}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\ntraining: {train_iters: 10, ",
                                        "global_batch_size: ", batch, ", seq_length: ", seq_length, "}\n");
  const v1::TrainingSpec spec = Resolve(ReadSpec(text, "job.yaml").spec);
  return SuggestLayout(spec, arch::FindPreset(preset).value(), {.gpus = gpus, .gpu_memory_bytes = gib * kGiB});
}

std::string Text(const Suggestion& suggestion) {
  const v1::ParallelismSpec& p = suggestion.spec.parallelism();
  return absl::StrCat("dp", p.data_parallel_size(), " tp", p.tensor_model_parallel_size(), " pp",
                      p.pipeline_model_parallel_size(), " vpp", p.virtual_pipeline_model_parallel_size(), " cp",
                      p.context_parallel_size(), p.sequence_parallel() ? " sp" : "");
}

TEST(SuggestTest, ASmallModelOnOneGpuStaysAtOne) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("qwen2_5_0_5b", 32, 4096, 1));
  EXPECT_EQ(Text(suggestion), "dp1 tp1 pp1 vpp1 cp1");
  EXPECT_THAT(suggestion.reasons, ::testing::IsEmpty());
}

TEST(SuggestTest, EightBillionOnEightGpus) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("llama3_1_8b", 128, 8192, 8));
  EXPECT_EQ(Text(suggestion), "dp4 tp2 pp1 vpp1 cp1 sp");
}

TEST(SuggestTest, SeventyBillionOnSixtyFourGpus) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("llama3_1_70b", 256, 8192, 64));
  EXPECT_EQ(Text(suggestion), "dp4 tp8 pp2 vpp4 cp1 sp");
  ASSERT_EQ(suggestion.reasons.size(), 5u);
  EXPECT_THAT(suggestion.reasons[0], HasSubstr("tensor_model_parallel_size 2: a rank needs about "));
  EXPECT_THAT(suggestion.reasons[0], HasSubstr("most of it weights, gradients and optimizer state"));
  EXPECT_THAT(suggestion.reasons[3], HasSubstr("pipeline_model_parallel_size 2"));
}

TEST(SuggestTest, LongContextOnSixteenGpus) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("llama3_1_8b", 8, 131072, 16));
  EXPECT_EQ(Text(suggestion), "dp1 tp2 pp1 vpp1 cp8 sp");
}

TEST(SuggestTest, FourHundredBillionOnAThousandLargerGpus) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("llama3_1_405b", 1024, 8192, 1024, 141));
  EXPECT_EQ(Text(suggestion), "dp16 tp8 pp8 vpp1 cp1 sp");
}

TEST(SuggestTest, ABatchThatDoesNotDivideMakesFewerReplicas) {
  ASSERT_OK_AND_ASSIGN(const Suggestion suggestion, Suggest("qwen2_5_0_5b", 12, 4096, 8));
  EXPECT_EQ(Text(suggestion), "dp4 tp2 pp1 vpp1 cp1 sp");
  ASSERT_EQ(suggestion.reasons.size(), 1u);
  EXPECT_THAT(suggestion.reasons[0],
              HasSubstr("tensor_model_parallel_size 2: a global batch of 12 samples does not divide over 8"));
}

TEST(SuggestTest, WhatFitsNowhereIsRefusedWithTheNumbers) {
  EXPECT_THAT(Suggest("llama3_1_70b", 8, 8192, 8),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no layout found on 8 GPUs of 80.0 GiB: with tp 8")));
  EXPECT_THAT(Suggest("tiny_llama", 4, 4096, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_position_embeddings = 512")));
}

}  // namespace
}  // namespace slipway::engine::spec
