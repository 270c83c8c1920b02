#include "engine/arch/model_arch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Paths(const std::vector<Fault>& faults) {
  std::vector<std::string> paths;
  for (const Fault& fault : faults) paths.push_back(fault.path);
  return paths;
}

TEST(ModelArch, PresetsAreValid) {
  for (std::string_view name : PresetNames()) {
    ASSERT_OK_AND_ASSIGN(const ModelArch arch, FindPreset(name));
    EXPECT_THAT(Paths(Validate(arch)), IsEmpty()) << name;
  }
}

TEST(ModelArch, AllFaultsAtOnce) {
  ASSERT_OK_AND_ASSIGN(ModelArch arch, FindPreset("tiny_llama"));
  arch.num_layers = 0;
  arch.num_query_groups = 3;
  arch.kv_channels = 15;
  arch.rotary_base = std::numeric_limits<double>::quiet_NaN();
  arch.rope_scaling->high_freq_factor = 1;
  arch.attention_dropout = 1;
  arch.add_qkv_bias = true;
  arch.bos_token_id = 260;
  arch.dtype = DType::kInt32;
  EXPECT_THAT(Paths(Validate(arch)),
              ElementsAre("model.num_layers", "model.kv_channels", "model.num_query_groups", "model.rotary_base",
                          "model.rope_scaling.high_freq_factor", "model.attention_dropout", "model.dtype",
                          "model.add_qkv_bias", "model.bos_token_id"));
}

TEST(ModelArch, Families) {
  for (Family family : {Family::kLlama, Family::kQwen2, Family::kQwen3}) {
    EXPECT_EQ(FamilyFromName(FamilyName(family)), family);
  }
  EXPECT_EQ(FamilyFromName("gpt2"), std::nullopt);
}

// Expected values by Hugging Face's formula.
TEST(RopeInverseFrequencies, Llama31Scaling) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, FindPreset("llama3_1_8b"));
  const std::vector<float> frequencies = RopeInverseFrequencies(arch);
  ASSERT_EQ(frequencies.size(), 64u);
  const std::map<int, double> expected = {{0, 1.0},
                                          {28, 0.00321144599},
                                          {29, 0.00216657076},
                                          {32, 0.000524846161},
                                          {34, 0.000178507813},
                                          {35, 9.55621235e-05},
                                          {63, 3.06892599e-07}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(frequencies[i] / value, 1, 1e-6) << i;
}

TEST(RopeInverseFrequencies, WithoutScaling) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, FindPreset("qwen3_0_6b"));
  const std::vector<float> frequencies = RopeInverseFrequencies(arch);
  ASSERT_EQ(frequencies.size(), 64u);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(frequencies[i], static_cast<float>(std::pow(1e6, -i / 64.0))) << i;
}

TEST(Presets, UnknownNames) {
  EXPECT_THAT(FindPreset("qwen3_0_6"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("did you mean \"qwen3_0_6b\"?")));
  EXPECT_THAT(FindPreset(""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("llama3_2_1b, ")));
}

TEST(ModelArch, CudaAsksForWholeVectorsAndKnownHeadSizes) {
  ModelArch arch = *FindPreset("tiny_llama");
  EXPECT_TRUE(ValidateForCuda(arch, 2).empty());
  arch.hidden_size = 68;  // whole vectors of fp32, not of bf16
  arch.kv_channels = 20;
  EXPECT_EQ(ValidateForCuda(arch, 4).size(), 1u);
  const std::vector<Fault> faults = ValidateForCuda(arch, 2);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].path, "model.hidden_size");
  EXPECT_EQ(faults[0].value, "68");
  EXPECT_EQ(faults[0].message, "must be a multiple of 8 and at most 16384 on CUDA in this precision");
  EXPECT_EQ(faults[1].path, "model.kv_channels");
  arch = *FindPreset("tiny_llama");
  arch.hidden_size = 16392;
  EXPECT_EQ(ValidateForCuda(arch, 2).size(), 1u);
}

}  // namespace
}  // namespace slipway::engine::arch
