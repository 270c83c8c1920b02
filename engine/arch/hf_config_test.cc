#include "engine/arch/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Llama-3.1-8B's config.json as published.
Json Llama31() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

Json Qwen3Small() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 160, "max_position_embeddings": 512, "max_window_layers": 2, "model_type": "qwen3",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 260})");
}

absl::StatusOr<ModelArch> Parse(const Json& config) { return ParseHfConfig(config.dump(), "config.json"); }

TEST(HfConfig, Llama31EqualsThePreset) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(Llama31()));
  ASSERT_OK_AND_ASSIGN(const ModelArch preset, FindPreset("llama3_1_8b"));
  EXPECT_EQ(arch, preset);
}

TEST(HfConfig, RopeScalingUnderTheLegacyKey) {
  Json config = Llama31();
  config["rope_scaling"].erase("rope_type");
  config["rope_scaling"]["type"] = "llama3";
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(config));
  EXPECT_EQ(arch.rope_scaling->factor, 8);
  config["rope_scaling"]["rope_type"] = "default";
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("rope_scaling.type = \"llama3\": contradicts rope_type")));
}

TEST(HfConfig, NullAndUnknownRopeScaling) {
  Json config = Llama31();
  config["rope_scaling"] = nullptr;
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(config));
  EXPECT_EQ(arch.rope_scaling, std::nullopt);
  config["rope_scaling"] = {{"rope_type", "foo"}, {"factor", 2}};
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid, HasSubstr("config.json: rope_scaling.rope_type = \"foo\": is not supported")));
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("rope_scaling.type = \"linear\"")));
  config["rope_scaling"] = {{"factor", 2}};
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("rope_scaling.rope_type: is missing")));
  config["rope_scaling"] = "llama3";
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("rope_scaling = \"llama3\": must be an object")));
}

TEST(HfConfig, Transformers5Spelling) {
  Json config = Llama31();
  Json parameters = config["rope_scaling"];
  parameters["rope_theta"] = 500000.0;
  config["rope_parameters"] = parameters;
  EXPECT_OK(Parse(config));  // both spellings
  config["rope_parameters"]["factor"] = 4.0;
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("contradicts rope_theta and rope_scaling")));
  config["rope_parameters"] = parameters;
  config.erase("rope_theta");
  config.erase("rope_scaling");
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(config));
  ASSERT_OK_AND_ASSIGN(const ModelArch preset, FindPreset("llama3_1_8b"));
  EXPECT_EQ(arch, preset);
  config["rope_parameters"].erase("rope_theta");
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("rope_parameters.rope_theta: is missing")));
}

TEST(HfConfig, WhatTheOutputDependsOnIsNeverAssumed) {
  for (const char* key : {"hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
                          "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size"}) {
    Json config = Qwen3Small();
    config.erase(key);
    EXPECT_THAT(Parse(config), StatusIs(kInvalid, AllOf(HasSubstr(key), HasSubstr("is missing"))));
  }
}

TEST(HfConfig, EveryFaultAtOnce) {
  Json config = Qwen3Small();
  config.erase("rope_theta");
  config["vocab_size"] = "260";
  config["hidden_size"] = 64.5;
  config["attention_bias"] = true;
  config["tie_word_embeddings"] = 1;
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid,
                       AllOf(HasSubstr("rope_theta: is missing"), HasSubstr("vocab_size = \"260\": must be an integer"),
                             HasSubstr("hidden_size = 64.5: must be an integer"),
                             HasSubstr("attention_bias = true: is not supported for Qwen3ForCausalLM"),
                             HasSubstr("tie_word_embeddings = 1: must be true or false"))));
}

TEST(HfConfig, HeadDim) {
  ASSERT_OK_AND_ASSIGN(const ModelArch own, Parse(Qwen3Small()));
  EXPECT_EQ(own.kv_channels, 32);
  Json config = Qwen3Small();
  config.erase("head_dim");
  ASSERT_OK_AND_ASSIGN(const ModelArch derived, Parse(config));
  EXPECT_EQ(derived.kv_channels, 16);
  config["hidden_size"] = 66;
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid, AllOf(HasSubstr("head_dim: is missing"), HasSubstr("66"), HasSubstr("4"))));
}

TEST(HfConfig, LlamaWithoutKeyValueHeads) {
  Json config = Llama31();
  config.erase("num_key_value_heads");
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(config));
  EXPECT_EQ(arch.num_query_groups, 32);
}

TEST(HfConfig, Architectures) {
  Json config = Llama31();
  config["architectures"] = {"MixtralForCausalLM"};
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid, HasSubstr("supported are LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM")));
  config["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("model_type = \"llama\": does not belong to architectures")));
  config.erase("architectures");
  EXPECT_OK(Parse(config));
  config.erase("model_type");
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("architectures: is missing, and so is model_type")));
}

TEST(HfConfig, RefusesVariantsThatWeDoNotCompute) {
  const auto expect_refused = [](Json config, const char* key, Json value) {
    config[key] = std::move(value);
    EXPECT_THAT(Parse(config), StatusIs(kInvalid, AllOf(HasSubstr(key), HasSubstr("not supported"))));
  };
  expect_refused(Llama31(), "hidden_act", "gelu");
  expect_refused(Llama31(), "mlp_bias", true);
  expect_refused(Llama31(), "attention_bias", true);
  expect_refused(Llama31(), "rope_interleaved", true);
  expect_refused(Llama31(), "partial_rotary_factor", 0.5);
  expect_refused(Llama31(), "quantization_config", {{"bits", 4}});
  expect_refused(Llama31(), "torch_dtype", "int8");
  expect_refused(Qwen3Small(), "layer_types", {"full_attention", "sliding_attention"});
}

TEST(HfConfig, SlidingWindow) {
  Json config = Qwen3Small();
  config["use_sliding_window"] = true;
  EXPECT_OK(Parse(config));  // without a size there is no window
  config["sliding_window"] = 128;
  EXPECT_OK(Parse(config));  // it would begin behind the last layer
  config["max_window_layers"] = 1;
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid, HasSubstr("use_sliding_window = true: sliding-window attention is not supported")));
  config["use_sliding_window"] = false;
  EXPECT_OK(Parse(config));
}

TEST(HfConfig, ValuesOutOfRangeCarryTheFilesNames) {
  Json config = Qwen3Small();
  config["num_hidden_layers"] = 0;
  config["num_key_value_heads"] = 3;
  config["eos_token_id"] = {2, 260};
  EXPECT_THAT(Parse(config),
              StatusIs(kInvalid, AllOf(HasSubstr("config.json: num_hidden_layers = 0"),
                                       HasSubstr("num_key_value_heads = 3"), HasSubstr("eos_token_id = 260"))));
}

TEST(HfConfig, BadJson) {
  EXPECT_THAT(ParseHfConfig("{\"a\": ", "x/config.json"),
              StatusIs(kInvalid, HasSubstr("x/config.json: not valid JSON")));
  EXPECT_THAT(ParseHfConfig("[]", "c"), StatusIs(kInvalid, HasSubstr("must be a JSON object, not array")));
  EXPECT_THAT(ParseHfConfig("", "c"), StatusIs(kInvalid, HasSubstr("not valid JSON")));
  EXPECT_THAT(ParseHfConfig("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "c"),
              StatusIs(kInvalid, HasSubstr("nested more than 64 deep")));
  EXPECT_THAT(ParseHfConfig("{\"vocab_size\": 1e999}", "c"), StatusIs(kInvalid, HasSubstr("not valid JSON")));
}

TEST(HfConfig, ReadsFiles) {
  const std::string directory = ::testing::TempDir() + "/hf_config_test";
  std::filesystem::create_directories(directory);
  const std::string path = directory + "/config.json";
  std::filesystem::remove(path);
  EXPECT_THAT(ReadHfConfig(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  EXPECT_THAT(ReadHfConfig(directory), StatusIs(kInvalid, HasSubstr("not a regular file")));
  std::ofstream(path) << Qwen3Small().dump();
  EXPECT_OK(ReadHfConfig(path));
  std::filesystem::resize_file(path, (16 << 20) + 1);
  EXPECT_THAT(ReadHfConfig(path), StatusIs(kInvalid, HasSubstr("16777217 bytes; at most 16777216")));
  std::filesystem::remove_all(directory);
}

TEST(HfConfig, PresetsSurviveWritingAndReading) {
  for (std::string_view name : PresetNames()) {
    ASSERT_OK_AND_ASSIGN(const ModelArch arch, FindPreset(name));
    ASSERT_OK_AND_ASSIGN(const std::string text, WriteHfConfig(arch));
    ASSERT_OK_AND_ASSIGN(const ModelArch again, ParseHfConfig(text, name));
    EXPECT_EQ(arch, again) << name;
    ASSERT_OK_AND_ASSIGN(const std::string twice, WriteHfConfig(again, text));
    EXPECT_EQ(text, twice) << name;
  }
}

TEST(HfConfig, ExportKeepsForeignKeysTheirOrderAndSpelling) {
  Json original = Llama31();
  original["my_note"] = {{"kept", {1, 2}}};
  ASSERT_OK_AND_ASSIGN(ModelArch arch, Parse(original));
  arch.dtype = DType::kFloat32;
  ASSERT_OK_AND_ASSIGN(const std::string text, WriteHfConfig(arch, original.dump()));
  const Json exported = Json::parse(text);
  EXPECT_EQ(exported["my_note"].dump(), R"({"kept":[1,2]})");
  EXPECT_EQ(exported["pretraining_tp"], 1);
  EXPECT_EQ(exported["use_cache"], true);
  EXPECT_EQ(exported.begin().key(), "architectures");
  EXPECT_EQ(exported["rope_scaling"].dump(), original["rope_scaling"].dump());
  EXPECT_EQ(exported["torch_dtype"], "float32");
  EXPECT_EQ(exported["dtype"], "float32");
  EXPECT_EQ(exported["rope_parameters"]["rope_theta"], 500000.0);
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_type"}) {
    EXPECT_EQ(exported["rope_parameters"][key], original["rope_scaling"][key]) << key;
  }
}

TEST(HfConfig, ExportWithoutScalingSaysDefault) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(Qwen3Small()));
  ASSERT_OK_AND_ASSIGN(const std::string text, WriteHfConfig(arch, Qwen3Small().dump()));
  const Json exported = Json::parse(text);
  EXPECT_EQ(exported["rope_theta"].dump(), "1000000");
  EXPECT_TRUE(exported["rope_scaling"].is_null());
  EXPECT_EQ(exported["rope_parameters"]["rope_type"], "default");
  EXPECT_EQ(exported["rope_parameters"]["rope_theta"], 1000000);
}

TEST(HfConfig, ExportRefusesAnInvalidArchitecture) {
  EXPECT_THAT(WriteHfConfig({}), StatusIs(kInvalid, HasSubstr("model.num_layers = 0")));
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(Qwen3Small()));
  EXPECT_THAT(WriteHfConfig(arch, "[1]"), StatusIs(kInvalid, HasSubstr("the original config.json")));
}

TEST(HfConfig, ListsOfEndTokens) {
  Json config = Qwen3Small();
  config["eos_token_id"] = {2, 5};
  ASSERT_OK_AND_ASSIGN(const ModelArch two, Parse(config));
  EXPECT_THAT(two.eos_token_ids, ElementsAre(2, 5));
  config["eos_token_id"] = Json::array({2});
  ASSERT_OK_AND_ASSIGN(const ModelArch one, Parse(config));
  ASSERT_OK_AND_ASSIGN(const std::string text, WriteHfConfig(one, config.dump()));
  EXPECT_EQ(Json::parse(text)["eos_token_id"].dump(), "[2]");
  config["eos_token_id"] = "end";
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("eos_token_id = \"end\"")));
}

}  // namespace
}  // namespace slipway::engine::arch
