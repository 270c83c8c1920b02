// The models that transformers wrote to tests/golden/data: their configs are read right, and their files hold exactly
// the tensors of our table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/arch/hf_config.h"
#include "engine/arch/param_spec.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

std::string Directory(const std::string& model) {
  return std::string(SLIPWAY_SOURCE_DIR "/tests/golden/data/") + model;
}

// The header of a safetensors file: its length in 8 bytes, little endian, then JSON.
Shapes SafetensorsShapes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  Shapes shapes;
  const nlohmann::json parsed = nlohmann::json::parse(header);
  for (const auto& [name, tensor] : parsed.items()) {
    if (name != "__metadata__") shapes[name] = tensor["shape"].get<std::vector<int64_t>>();
  }
  return shapes;
}

class GoldenModels : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModels, TableEqualsTheFile) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, ReadHfConfig(Directory(GetParam()) + "/config.json"));
  Shapes shapes;
  for (const ParamSpec& spec : BuildParamTable(arch)) {
    if (!spec.tied_to.has_value()) shapes[spec.name] = spec.shape;
  }
  EXPECT_EQ(shapes, SafetensorsShapes(Directory(GetParam()) + "/model.safetensors"));
}

TEST_P(GoldenModels, ConfigSurvivesAnExport) {
  const std::string path = Directory(GetParam()) + "/config.json";
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, ReadHfConfig(path));
  std::ifstream file(path);
  const std::string original((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_OK_AND_ASSIGN(const std::string exported, WriteHfConfig(arch, original));
  ASSERT_OK_AND_ASSIGN(const ModelArch again, ParseHfConfig(exported, "exported"));
  EXPECT_EQ(arch, again);
  const auto before = nlohmann::json::parse(original);
  const auto after = nlohmann::json::parse(exported);
  for (const auto& [key, value] : before.items()) EXPECT_EQ(after[key], value) << key;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModels, ::testing::Values("llama", "qwen2", "qwen3", "qwen3_tied", "qwen3_moe"),
                         [](const auto& instance) { return instance.param; });

TEST(GoldenModelConfigs, WhatTheyCover) {
  ASSERT_OK_AND_ASSIGN(const ModelArch llama, ReadHfConfig(Directory("llama") + "/config.json"));
  EXPECT_EQ(llama.rope_scaling, (RopeScaling{8, 1, 4, 64}));
  EXPECT_TRUE(llama.untie_embeddings_and_output_weights);
  ASSERT_OK_AND_ASSIGN(const ModelArch qwen2, ReadHfConfig(Directory("qwen2") + "/config.json"));
  EXPECT_EQ(qwen2.kv_channels, 16);
  EXPECT_EQ(qwen2.rotary_base, 10000);
  EXPECT_FALSE(qwen2.untie_embeddings_and_output_weights);
  ASSERT_OK_AND_ASSIGN(const ModelArch qwen3, ReadHfConfig(Directory("qwen3") + "/config.json"));
  EXPECT_EQ(qwen3.kv_channels, 24);
}

}  // namespace
}  // namespace slipway::engine::arch
