#include "engine/topology/mesh_validity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slipway::engine::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Qwen3-0.6B with a batch that fits many layouts.
MeshFacts Facts() {
  return {.num_layers = 28,
          .hidden_size = 1024,
          .ffn_hidden_size = 3072,
          .num_attention_heads = 16,
          .num_query_groups = 8,
          .kv_channels = 128,
          .max_position_embeddings = 40960,
          .seq_length = 4096,
          .micro_batch_size = 2,
          .global_batch_size = 64};
}

auto FaultAt(const std::string& path, const std::string& value, const std::string& text) {
  return AllOf(Field("path", &Fault::path, path), Field("value", &Fault::value, value),
               Field("message", &Fault::message, HasSubstr(text)));
}

TEST(MeshValidity, GoodLayouts) {
  EXPECT_THAT(ValidateMesh({}, Facts()), IsEmpty());
  EXPECT_THAT(ValidateMesh({}, {}), IsEmpty());
  EXPECT_THAT(ValidateMesh({.tp = 16, .cp = 2, .dp = 4, .pp = 3, .etp = 16}, Facts()), IsEmpty());
  MeshFacts facts = Facts();
  facts.sequence_parallel = true;
  facts.virtual_pipeline_size = 7;
  facts.world_size = 16;
  EXPECT_THAT(ValidateMesh({.tp = 2, .dp = 2, .pp = 4}, facts), IsEmpty());
}

TEST(MeshValidity, SizesBelowOneEndTheCheck) {
  EXPECT_THAT(ValidateMesh({.tp = 0, .pp = -2}, Facts()),
              ElementsAre(FaultAt("parallelism.tensor_model_parallel_size", "0", "at least 1"),
                          FaultAt("parallelism.pipeline_model_parallel_size", "-2", "at least 1")));
}

TEST(MeshValidity, AllFaultsAtOnce) {
  MeshFacts facts = Facts();
  facts.seq_length = 50001;
  facts.global_batch_size = 10;
  EXPECT_THAT(
      ValidateMesh({.tp = 3, .cp = 2, .dp = 2, .pp = 29, .etp = 3}, facts),
      UnorderedElementsAre(
          FaultAt("parallelism.tensor_model_parallel_size", "3", "num_attention_heads = 16"),
          FaultAt("parallelism.tensor_model_parallel_size", "3", "num_query_groups = 8"),
          FaultAt("parallelism.pipeline_model_parallel_size", "29", "num_layers = 28 is fewer than the 29 stages"),
          FaultAt("training.seq_length", "50001", "max_position_embeddings = 40960"),
          FaultAt("training.seq_length", "50001", "= 4"), FaultAt("training.global_batch_size", "10", "2 * 2")));
}

TEST(MeshValidity, Heads) {
  MeshFacts facts = Facts();
  facts.num_query_groups = 6;
  EXPECT_THAT(ValidateMesh({.tp = 4, .etp = 4}, facts),
              ElementsAre(FaultAt("parallelism.tensor_model_parallel_size", "4", "num_query_groups = 6"),
                          FaultAt("model.num_query_groups", "6", "num_attention_heads = 16")));
  facts = Facts();
  facts.kv_channels = 0;
  facts.hidden_size = 1000;
  EXPECT_THAT(ValidateMesh({}, facts), ElementsAre(FaultAt("model.hidden_size", "1000", "num_attention_heads = 16")));
  facts = Facts();
  facts.ffn_hidden_size = 3070;
  EXPECT_THAT(ValidateMesh({.tp = 4, .etp = 4}, facts),
              ElementsAre(FaultAt("parallelism.tensor_model_parallel_size", "4", "ffn_hidden_size = 3070")));
}

TEST(MeshValidity, World) {
  MeshFacts facts = Facts();
  facts.world_size = 6;
  EXPECT_THAT(ValidateMesh({.dp = 4}, facts),
              ElementsAre(FaultAt("parallelism.data_parallel_size", "4", "does not fill the job's 6 slots")));
  EXPECT_THAT(ValidateMesh({.dp = 4, .etp = 3}, Facts()),
              ElementsAre(FaultAt("parallelism.expert_tensor_parallel_size", "3",
                                  "dp * cp * tp = 4 * 1 * 1 = 4 must be a multiple of ep * etp = 1 * 3 = 3")));
  facts = Facts();
  facts.num_experts = 16;
  EXPECT_THAT(ValidateMesh({.cp = 2, .dp = 3, .pp = 2, .ep = 4}, facts),
              testing::Contains(FaultAt("parallelism.expert_model_parallel_size", "4",
                                        "dp * cp * tp = 3 * 2 * 1 = 6 must be a multiple of ep * etp = 4 * 1 = 4")));
}

TEST(MeshValidity, Order) {
  EXPECT_THAT(ValidateMesh({.tp = 2, .dp = 2, .pp = 2, .etp = 2}, Facts(), "tp-cp-ep-pp-dp"), IsEmpty());
  EXPECT_THAT(ValidateMesh({.tp = 2, .dp = 2, .pp = 2}, Facts(), "tp-cp-ep-pp-dp"),
              ElementsAre(FaultAt("parallelism.order", "tp-cp-ep-pp-dp", "make dp (2) equal edp (4)")));
  EXPECT_THAT(ValidateMesh({.tp = 2}, Facts(), "tp-xp"),
              ElementsAre(FaultAt("parallelism.order", "tp-xp", "unknown axis \"xp\"")));
  EXPECT_THAT(ValidateMesh({.dp = 2}, Facts(), "tp-cp-ep-pp"),
              ElementsAre(FaultAt("parallelism.order", "tp-cp-ep-pp", "lacks dp, whose size is 2")));
}

TEST(MeshValidity, LayoutString) {
  MeshFacts facts = Facts();
  facts.pipeline_layout = "Et*13|t*14|t|L";
  facts.virtual_pipeline_size = 2;
  EXPECT_THAT(ValidateMesh({.pp = 2}, facts), IsEmpty());
  const std::string path = "parallelism.pipeline_model_parallel_layout";
  EXPECT_THAT(ValidateMesh({.pp = 8}, facts),
              ElementsAre(FaultAt(path, "Et*13|t*14|t|L", "4 stages, which is not a multiple of")));
  facts.virtual_pipeline_size = 1;
  EXPECT_THAT(ValidateMesh({.pp = 2}, facts),
              ElementsAre(FaultAt("parallelism.virtual_pipeline_model_parallel_size", "1", "set it to 2")));
  facts.pipeline_layout = "Et*13|t*14L";
  EXPECT_THAT(ValidateMesh({.pp = 2}, facts),
              ElementsAre(FaultAt(path, "Et*13|t*14L", "27 layers (t), and model.num_layers = 28")));
  facts.pipeline_layout = "Et*13|t*14";
  EXPECT_THAT(ValidateMesh({.pp = 2}, facts),
              ElementsAre(FaultAt(path, "Et*13|t*14", "position 7: the layout must end with L")));
  facts.pipeline_layout = "E||t*28|L";
  facts.virtual_pipeline_size = 2;
  EXPECT_THAT(ValidateMesh({.pp = 2}, facts), IsEmpty());
}

TEST(MeshValidity, SequenceParallel) {
  MeshFacts facts = Facts();
  facts.sequence_parallel = true;
  EXPECT_THAT(ValidateMesh({}, facts), ElementsAre(FaultAt("parallelism.sequence_parallel", "true", "which is 1")));
  facts.micro_batch_size = 1;
  facts.seq_length = 4098;
  EXPECT_THAT(ValidateMesh({.tp = 4, .etp = 4}, facts),
              ElementsAre(FaultAt("training.seq_length", "4098", "parallel_size = 4")));
  facts.micro_batch_size = 2;  // 8196 tokens divide
  EXPECT_THAT(ValidateMesh({.tp = 4, .etp = 4}, facts), IsEmpty());
}

TEST(MeshValidity, Experts) {
  MeshFacts facts = Facts();
  EXPECT_THAT(ValidateMesh({.dp = 2, .ep = 2}, facts), IsEmpty());  // a model that is not known yet
  facts.num_experts = 0;
  EXPECT_THAT(ValidateMesh({.dp = 2, .ep = 2}, facts),
              ElementsAre(FaultAt("parallelism.expert_model_parallel_size", "2", "no experts")));
  facts.num_experts = 9;
  facts.moe_ffn_hidden_size = 767;
  EXPECT_THAT(ValidateMesh({.tp = 2, .dp = 2, .ep = 2, .etp = 2}, facts),
              ElementsAre(FaultAt("parallelism.expert_model_parallel_size", "2", "num_moe_experts = 9"),
                          FaultAt("parallelism.sequence_parallel", "false", "needs sequence parallelism"),
                          FaultAt("parallelism.expert_tensor_parallel_size", "2", "moe_ffn_hidden_size = 767")));
}

TEST(MeshValidity, Interleaving) {
  MeshFacts facts = Facts();
  facts.virtual_pipeline_size = 2;
  EXPECT_THAT(ValidateMesh({}, facts),
              ElementsAre(FaultAt("parallelism.virtual_pipeline_model_parallel_size", "2", "which is 1")));
  facts.global_batch_size = 18;  // 9 micro-batches: groups of 4 leave one
  EXPECT_THAT(ValidateMesh({.pp = 4}, facts),
              ElementsAre(FaultAt("parallelism.microbatch_group_size_per_vp_stage", "4",
                                  "a last group of 1 of the 9")));
  facts.microbatch_group_size_per_vp_stage = 10;
  EXPECT_THAT(ValidateMesh({.pp = 4}, facts),
              ElementsAre(FaultAt("parallelism.microbatch_group_size_per_vp_stage", "10", "between")));
  facts.virtual_pipeline_size = 8;
  facts.microbatch_group_size_per_vp_stage = 9;
  EXPECT_THAT(ValidateMesh({.pp = 4}, facts), ElementsAre(FaultAt("parallelism.pipeline_model_parallel_size", "4",
                                                                  "28 is fewer than the 4 * 8 virtual stages")));
}

TEST(MeshValidity, HugeNumbersDoNotOverflow) {
  MeshFacts facts = Facts();
  facts.micro_batch_size = INT64_MAX;
  facts.global_batch_size = INT64_MAX;
  facts.sequence_parallel = true;
  EXPECT_THAT(ValidateMesh({.tp = 8, .dp = 2, .etp = 8}, facts),
              ElementsAre(FaultAt("training.global_batch_size", "9223372036854775807", "2")));
}

TEST(MeshValidity, AnOrderThatDoesNotEndWithThePipelineNeedsEqualDataParallelSizes) {
  const MeshSizes sizes{.tp = 2, .cp = 2, .dp = 2, .pp = 2, .ep = 1, .etp = 2};
  EXPECT_TRUE(ValidateMesh(sizes, {}, "tp-cp-ep-dp-pp").empty());
  const std::vector<Fault> faults = ValidateMesh(sizes, {}, "tp-pp-dp-ep-cp");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].path, "parallelism.order");
  EXPECT_EQ(faults[0].message,
            "must end with pp, because the experts' data-parallel size 4 is not parallelism.data_parallel_size = 2");
}

}  // namespace
}  // namespace slipway::engine::topology
