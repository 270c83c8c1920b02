// The experts of an architecture: faults, layer patterns, config.json, the parameters and where they lie, the cost.
#include "engine/arch/moe_arch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/model_estimate.h"
#include "engine/arch/param_spec.h"
#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ModelArch Tiny() { return *FindPreset("tiny_qwen3_moe"); }

std::string FaultsOf(const std::vector<Fault>& faults) { return std::string(FaultsToStatus(faults).message()); }

std::string FaultsAfter(const std::function<void(MoeArch&)>& change) {
  MoeArch moe = *Tiny().moe;
  change(moe);
  return FaultsOf(ValidateMoe(moe, 2));
}

TEST(MoeArch, PresetsAreSound) {
  for (const char* name : {"tiny_qwen3_moe", "qwen3_30b_a3b", "qwen3_235b_a22b"}) {
    ASSERT_OK_AND_ASSIGN(const ModelArch arch, FindPreset(name));
    EXPECT_THAT(Validate(arch), IsEmpty()) << name;
    EXPECT_THAT(HfFaults(*arch.moe), IsEmpty()) << name;
  }
  // As published: 30.5 and 235 billion, of which a token uses 3.3 and 22.
  EXPECT_EQ(ParameterCount(*FindPreset("qwen3_30b_a3b")), 30'532'122'624);
  EXPECT_EQ(ParameterCount(*FindPreset("qwen3_235b_a22b")), 235'093'634'560);
}

TEST(MoeArch, NamesEveryFault) {
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.topk = 9; }),
              HasSubstr("model.moe_router_topk = 9: must lie between 1 and 8"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.expert_bias = true; }),
              HasSubstr("moe_router_enable_expert_bias = true: only for moe_router_score_function = sigmoid"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) {
                moe.pre_softmax = true;
                moe.score_function = RouterScore::kSigmoid;
              }),
              HasSubstr("moe_router_pre_softmax"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.pad_to_capacity = true; }),
              HasSubstr("needs model.moe_expert_capacity_factor"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.capacity_factor = 0; }), HasSubstr("must be a finite number above 0"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.aux_loss_coeff = -1; }), HasSubstr("moe_aux_loss_coeff = -1"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.shared_expert_gate = true; }), HasSubstr("no shared experts"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) { moe.layers = {true}; }),
              HasSubstr("names 1 layers; model.num_layers = 2"));
  EXPECT_THAT(FaultsAfter([](MoeArch& moe) {
                moe.layers = {false, false};
              }),
              HasSubstr("leaves no layer with experts"));
  const auto groups = [](int64_t num_groups, int64_t group_topk, int64_t topk) {
    return FaultsAfter([=](MoeArch& moe) {
      moe.num_groups = num_groups;
      moe.group_topk = group_topk;
      moe.topk = topk;
    });
  };
  EXPECT_EQ(groups(4, 2, 4), "");
  EXPECT_THAT(groups(3, 1, 2), HasSubstr("model.num_moe_experts = 8 a multiple of it"));
  EXPECT_THAT(groups(4, 5, 2), HasSubstr("moe_router_group_topk = 5: must lie between 1 and"));
  EXPECT_THAT(groups(4, 2, 3), HasSubstr("must be a multiple of model.moe_router_group_topk = 2"));
  EXPECT_THAT(groups(4, 1, 4), HasSubstr("at most the 2 experts"));
}

TEST(MoeArch, BelongsToOneFamilyAlone) {
  ModelArch arch = Tiny();
  arch.moe.reset();
  EXPECT_THAT(FaultsOf(Validate(arch)), HasSubstr("a qwen3_moe model has experts"));
  ModelArch dense = *FindPreset("tiny_qwen3");
  dense.moe = Tiny().moe;
  EXPECT_THAT(FaultsOf(Validate(dense)), HasSubstr("a qwen3 model has no experts"));
}

TEST(MoeArch, LayerPatterns) {
  const auto parse = [](const char* text) { return ParseLayerPattern(text, 4); };
  EXPECT_THAT(*parse("1"), IsEmpty());
  EXPECT_THAT(*parse("1,1,1,1"), IsEmpty());
  EXPECT_THAT(*parse("2"), ElementsAre(true, false, true, false));
  EXPECT_THAT(*parse("[0, 1, 1, 0]"), ElementsAre(false, true, true, false));
  EXPECT_EQ(LayerPatternText(*parse("[0, 1, 1, 0]")), "0,1,1,0");
  EXPECT_EQ(LayerPatternText({}), "1");
  EXPECT_THAT(parse("0,1"), StatusIs(kInvalid, HasSubstr("names 2 layers; the model has 4")));
  EXPECT_THAT(parse("0,2,1,1"), StatusIs(kInvalid, HasSubstr("one 0 or 1 for each layer")));
  EXPECT_THAT(parse("0"), StatusIs(kInvalid, HasSubstr("whole number")));
  EXPECT_THAT(parse("x"), StatusIs(kInvalid, HasSubstr("whole number")));
}

// Qwen3-30B-A3B's config.json as published.
Json Qwen30B() {
  return Json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
}

absl::StatusOr<ModelArch> Parse(const Json& config) { return ParseHfConfig(config.dump(), "config.json"); }

TEST(MoeHfConfig, Qwen30BEqualsThePreset) {
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(Qwen30B()));
  EXPECT_EQ(arch, *FindPreset("qwen3_30b_a3b"));
  Json config = Qwen30B();
  config["num_local_experts"] = 128;  // transformers 5
  EXPECT_OK(Parse(config));
  config.erase("num_experts");
  EXPECT_EQ(*Parse(config), arch);
  config["num_experts"] = 64;
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("num_local_experts = 128: contradicts num_experts = 64")));
}

TEST(MoeHfConfig, WhatTheOutputDependsOnIsNeverAssumed) {
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}) {
    Json config = Qwen30B();
    config.erase(key);
    EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr(absl::StrCat(key, ": is missing"))));
  }
}

TEST(MoeHfConfig, LayersWithoutExperts) {
  Json config = Qwen30B();
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  ASSERT_OK_AND_ASSIGN(const ModelArch arch, Parse(config));
  EXPECT_THAT(arch.moe->layers, ElementsAre(false, true, false, false, false, true));
  // The spelling stays where it says the same, and is ours where it does not.
  ASSERT_OK_AND_ASSIGN(const std::string same, WriteHfConfig(arch, config.dump()));
  EXPECT_EQ(Json::parse(same)["decoder_sparse_step"], 2);
  ASSERT_OK_AND_ASSIGN(const std::string fresh, WriteHfConfig(arch));
  EXPECT_EQ(Json::parse(fresh)["mlp_only_layers"], Json::parse("[0, 2, 3, 4]"));
  EXPECT_EQ(*ParseHfConfig(fresh, "fresh"), arch);
  config["mlp_only_layers"] = "3";
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, HasSubstr("must be a list of layer numbers")));
}

TEST(MoeHfConfig, WritesBothSpellingsOfTheNumberOfExperts) {
  ModelArch arch = Tiny();
  arch.moe->pre_softmax = true;
  ASSERT_OK_AND_ASSIGN(const std::string text, WriteHfConfig(arch));
  const Json config = Json::parse(text);
  EXPECT_EQ(config["architectures"], Json::array({"Qwen3MoeForCausalLM"}));
  EXPECT_EQ(config["num_experts"], 8);
  EXPECT_EQ(config["num_local_experts"], 8);
  EXPECT_EQ(config["norm_topk_prob"], false);
  EXPECT_EQ(*ParseHfConfig(text, "text"), arch);
}

TEST(MoeHfConfig, RefusesToWriteWhatTheClassDoesNotCompute) {
  ModelArch arch = Tiny();
  arch.moe->score_function = RouterScore::kSigmoid;
  arch.moe->shared_expert_intermediate_size = 32;
  EXPECT_THAT(WriteHfConfig(arch), StatusIs(kInvalid, HasSubstr("moe_router_score_function = sigmoid: is not what")));
  EXPECT_THAT(WriteHfConfig(arch), StatusIs(kInvalid, HasSubstr("moe_shared_expert_intermediate_size = 32")));
}

TEST(MoeTable, HoldsHuggingFacesTensors) {
  ModelArch arch = Tiny();
  arch.moe->layers = {false, true};
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParamSpec& spec : BuildParamTable(arch)) shapes[spec.name] = spec.shape;
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_proj.weight"), (std::vector<int64_t>{160, 64}));
  EXPECT_FALSE(shapes.contains("model.layers.0.mlp.gate.weight"));
  EXPECT_FALSE(shapes.contains("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.gate.weight"), (std::vector<int64_t>{8, 64}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.7.up_proj.weight"), (std::vector<int64_t>{48, 64}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.experts.0.down_proj.weight"), (std::vector<int64_t>{64, 48}));
}

TEST(MoeTable, BiasAndSharedExpertsWhereTheModelHasThem) {
  ModelArch arch = Tiny();
  arch.moe->score_function = RouterScore::kSigmoid;
  arch.moe->expert_bias = true;
  arch.moe->shared_expert_intermediate_size = 40;
  arch.moe->shared_expert_gate = true;
  std::map<std::string, ParamSpec> table;
  for (const ParamSpec& spec : BuildParamTable(arch)) table[spec.name] = spec;
  const ParamSpec& bias = table.at("model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(bias.sign_update_rate, 1e-3);
  EXPECT_EQ(bias.init.kind, Init::Kind::kZeros);
  EXPECT_EQ(TpGradSumRanks(bias, 2, /*sequence_parallel=*/true), 2);
  EXPECT_EQ(table.at("model.layers.0.mlp.shared_expert.down_proj.weight").shape, (std::vector<int64_t>{64, 40}));
  EXPECT_EQ(table.at("model.layers.0.mlp.shared_expert_gate.weight").shape, (std::vector<int64_t>{1, 64}));
}

TEST(MoeTable, ExpertsLieOnTheExpertViewOfTheMesh) {
  const std::vector<ParamSpec> table = BuildParamTable(Tiny());
  std::map<std::string, int> holders;
  int64_t elements = 0;
  for (int ep = 0; ep < 2; ++ep) {
    for (int etp = 0; etp < 2; ++etp) {
      const TpPlacement place = PlacementOf({.tp = 4, .dp = 2, .ep = 2, .etp = 2}, {.ep = ep, .etp = etp}, 128);
      for (const ParamSpec& spec : table) {
        if (!spec.expert.has_value()) continue;
        EXPECT_EQ(TpReplicas(spec, 4), 1);
        EXPECT_EQ(TpGradSumRanks(spec, 4, true), 1);
        ASSERT_OK_AND_ASSIGN(const bool holds, HoldsExpert(spec, place));
        EXPECT_EQ(holds, spec.expert->index / 4 == ep) << spec.name;
        if (!holds) continue;
        ++holders[spec.name];
        ASSERT_OK_AND_ASSIGN(const std::vector<int64_t> shape, LocalShape(spec, place));
        EXPECT_EQ(shape[*spec.tp_shard_dim], 24) << spec.name;  // of 48
        ASSERT_OK_AND_ASSIGN(const ShardRange range, LocalRange(spec, *spec.tp_shard_dim, place));
        EXPECT_EQ(range.begin, 24 * etp);
        elements += shape[0] * shape[1];
      }
    }
  }
  for (const auto& [name, count] : holders) EXPECT_EQ(count, 2) << name;
  EXPECT_EQ(elements, 2 * 8 * 3 * 48 * 64);
  EXPECT_THAT(HoldsExpert(table.back(), {.ep_size = 3}), ::slipway::testing::IsOk());
  for (const ParamSpec& spec : table) {
    if (!spec.expert.has_value()) continue;
    EXPECT_THAT(HoldsExpert(spec, {.ep_size = 3}), StatusIs(kInvalid, HasSubstr("8 experts do not divide over 3")));
    EXPECT_THAT(LocalShape(spec, {.etp_size = 5}), StatusIs(kInvalid, HasSubstr("5 ranks of expert tensor")));
    break;
  }
}

TEST(MoeEstimate, CountsTheExpertsThatATokenUses) {
  const ModelArch arch = *FindPreset("qwen3_30b_a3b");
  const TrainingFlops flops = FlopsOfTokens(arch, 1, 0, arch.vocab_size);
  EXPECT_DOUBLE_EQ(flops.mlp, 6.0 * 48 * 2048 * (8 * 768 * 3 + 128));
}

TEST(MoeEstimate, ExpertsAreCutOverTheirOwnRanks) {
  MemoryOptions options{.mesh = {.dp = 8}, .bytes = StateBytes::Bf16Mixed(), .seq_length = 128};
  const ModelArch arch = *FindPreset("qwen3_30b_a3b");
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate whole, EstimateMemory(arch, options, 0));
  EXPECT_EQ(whole.parameters, ParameterCount(arch) + 0);
  options.mesh.ep = 8;
  ASSERT_OK_AND_ASSIGN(const MemoryEstimate cut, EstimateMemory(arch, options, 0));
  const int64_t experts = int64_t{48} * 128 * 3 * 768 * 2048;
  EXPECT_EQ(cut.parameters, whole.parameters - experts / 8 * 7);
  // With edp = 1 a rank keeps all the state of its own experts: in sum the same as before.
  EXPECT_DOUBLE_EQ(cut.optimizer, whole.optimizer);
}

}  // namespace
}  // namespace slipway::engine::arch
