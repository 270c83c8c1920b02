#include "engine/spec/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/arch/presets.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"
#include "engine/spec/test_specs.h"
#include "engine/spec/validate.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::spec {
namespace {

using ::testing::HasSubstr;
using topology::GroupKind;

TEST(PlanTest, CountsWhatAStepCosts) {
  v1::TrainingSpec spec =
      MockSpec("parallelism: {data_parallel_size: 2}\nprecision: {name: fp32}\ncheckpoint: {save_interval: 10}\n");
  spec = Resolve(spec);
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch model, ArchFromSpec(spec));
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, model));
  EXPECT_EQ(plan.world_size, 2);
  EXPECT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.ranks[1].dp, 1);
  EXPECT_EQ(plan.micro_batches_per_step, 2);
  EXPECT_EQ(plan.tokens_per_step, 4 * 32);
  EXPECT_EQ(plan.samples, 400);
  EXPECT_EQ(plan.parameters, arch::ParameterCount(model));
  EXPECT_GT(plan.flops_per_step, 0);
  EXPECT_GE(plan.memory.Total(), 4.0 * static_cast<double>(plan.parameters));
  EXPECT_EQ(plan.checkpoint_bytes, 12 * plan.parameters);
  EXPECT_EQ(plan.checkpoints_kept_bytes, 3 * plan.checkpoint_bytes);  // two kept and one being written
  EXPECT_THAT(PlanText(plan), HasSubstr("2 micro-batches on each data-parallel rank, at most 128 tokens"));
}

v1::TrainingSpec BigSpec(const std::string& preset, const std::string& training, const std::string& parallelism) {
  return Resolve(ReadSpec(absl::StrCat("name: big\nmodel: {preset: ", preset,
                                       "}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\ntraining: {train_iters: 10, ",
                                       training, "}\nparallelism: {", parallelism, "}\n"),
                          "job.yaml")
                     .spec);
}

const PlannedGroups& GroupsOf(const Plan& plan, GroupKind kind) {
  return *std::find_if(plan.groups.begin(), plan.groups.end(),
                       [&](const PlannedGroups& groups) { return groups.kind == kind; });
}

TEST(PlanTest, LayoutOfSixtyFourRanks) {
  const v1::TrainingSpec spec =
      BigSpec("llama3_1_70b", "global_batch_size: 128, seq_length: 4096",
              "data_parallel_size: 4, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 4, "
              "virtual_pipeline_model_parallel_size: 5");
  EXPECT_TRUE(Validate(spec).empty());
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch model, ArchFromSpec(spec));
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, model, {.gpus_per_node = 8}));
  EXPECT_EQ(plan.nodes, 8);
  EXPECT_EQ(plan.partition.vpp, 5);
  const PlannedGroups& tensor = GroupsOf(plan, GroupKind::kTp);
  EXPECT_EQ(tensor.count, 16);
  EXPECT_EQ(tensor.size, 4);
  EXPECT_EQ(tensor.nodes, 1);
  EXPECT_EQ(tensor.examples[1], (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(GroupsOf(plan, GroupKind::kPp).nodes, 4);
  EXPECT_DOUBLE_EQ(plan.ideal_bubble, 3.0 / (5 * 32));
  EXPECT_GT(plan.simulated_bubble, plan.ideal_bubble);  // the last stage has the output layer as well
  EXPECT_LT(plan.simulated_bubble, 0.2);
  EXPECT_EQ(plan.memory_by_stage.size(), 4u);
  EXPECT_GT(plan.memory_by_stage[3].logits, 0);
  const nlohmann::ordered_json json = PlanJson(plan);
  EXPECT_EQ(json["stages"].size(), 20u);
  EXPECT_EQ(json["groups"][0]["examples"][0].get<std::vector<int>>(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(json["memory_by_pipeline_rank"].size(), 4u);
  EXPECT_EQ(plan.traffic.size(), 5u);  // tp, pp both ways, gradients, weights
}

// Every kind of groups makes a partition of the ranks, but for those of the pipeline's ends.
void ExpectPartitions(const topology::Mesh& mesh) {
  for (const topology::GroupList& list : mesh.AllGroups()) {
    if (list.kind == GroupKind::kEmbedding || list.kind == GroupKind::kPositionEmbedding) continue;
    std::vector<int> seen(mesh.world(), 0);
    for (const std::vector<int>& ranks : list.groups) {
      for (const int rank : ranks) ++seen[rank];
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), mesh.world()) << GroupKindName(list.kind);
  }
}

TEST(PlanTest, UpToSixteenThousandRanks) {
  struct Case {
    int64_t ranks;
    std::string parallelism;
  };
  for (const Case& known : std::vector<Case>{
           {64, "data_parallel_size: 2, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 4"},
           {1024, "data_parallel_size: 16, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 8, "
                  "virtual_pipeline_model_parallel_size: 4"},
           {16384, "data_parallel_size: 128, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 16, "
                   "virtual_pipeline_model_parallel_size: 7"}}) {
    const v1::TrainingSpec spec =
        BigSpec("llama3_1_405b", "global_batch_size: 4096, seq_length: 8192", known.parallelism);
    EXPECT_TRUE(Validate(spec).empty());
    ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, *arch::FindPreset("llama3_1_405b")));
    EXPECT_EQ(plan.world_size, known.ranks);
    EXPECT_EQ(plan.nodes, known.ranks / 8);
    EXPECT_GE(plan.simulated_bubble, plan.ideal_bubble);
    EXPECT_GT(plan.traffic.size(), 0u);
    ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, MeshOf(spec.parallelism()));
    ExpectPartitions(mesh);
  }
}

// The simulation leaves micro-batches out, and what remains must be a schedule: whole groups of 3 here.
TEST(PlanTest, ManyMicroBatchesThroughVirtualStagesAreSimulatedInWholeGroups) {
  const v1::TrainingSpec spec =
      BigSpec("llama3_1_8b", "global_batch_size: 4101, micro_batch_size: 1, seq_length: 4096",
              "pipeline_model_parallel_size: 3, virtual_pipeline_model_parallel_size: 2");
  EXPECT_TRUE(Validate(spec).empty()) << FaultsToStatus(Validate(spec));
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, *arch::FindPreset("llama3_1_8b")));
  EXPECT_EQ(plan.micro_batches_per_step, 4101);
  EXPECT_GT(plan.simulated_bubble, 0);
}

// The published table of Megatron-LM's README: sequences of 4096, 131072 tokens, 48 replicas.
TEST(PlanTest, TheLargestLayoutsOfMegatronsTable) {
  struct Row {
    int64_t heads, hidden, layers;
    int tp, pp;
    int64_t gpus, batch;
    double billions;
  };
  for (const Row& row : {Row{16, 2048, 24, 1, 1, 48, 192, 1.7}, Row{32, 4096, 30, 2, 1, 96, 192, 7.1},
                         Row{48, 6144, 32, 4, 1, 192, 192, 16}, Row{56, 7168, 48, 8, 1, 384, 192, 32},
                         Row{64, 8192, 84, 8, 2, 768, 384, 70}, Row{80, 10240, 92, 8, 4, 1536, 768, 119},
                         Row{96, 12288, 96, 8, 6, 2304, 1152, 177}, Row{128, 16384, 96, 8, 8, 3072, 1536, 314},
                         Row{144, 18432, 112, 8, 16, 6144, 3072, 462}}) {
    const std::string text = absl::StrCat(
        "name: table\nmodel: {architecture: llama, num_layers: ", row.layers, ", hidden_size: ", row.hidden,
        ", num_attention_heads: ", row.heads, ", ffn_hidden_size: ", row.hidden * 8 / 3 / 256 * 256,
        ", vocab_size: 131072}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\ntraining: {train_iters: 10, ",
        "global_batch_size: ", row.batch, ", seq_length: 4096}\nparallelism: {data_parallel_size: 48, ",
        "tensor_model_parallel_size: ", row.tp, ", sequence_parallel: ", row.tp > 1 ? "true" : "false",
        ", pipeline_model_parallel_size: ", row.pp, "}\n");
    const v1::TrainingSpec spec = Resolve(ReadSpec(text, "table.yaml").spec);
    EXPECT_TRUE(Validate(spec).empty()) << FaultsToStatus(Validate(spec));
    ASSERT_OK_AND_ASSIGN(const arch::ModelArch model, ArchFromSpec(spec));
    ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, model));
    EXPECT_EQ(plan.world_size, row.gpus);
    EXPECT_NEAR(static_cast<double>(plan.parameters) / 1e9 / row.billions, 1, 0.15) << row.billions;
    EXPECT_LT(plan.memory.Total(), 80.0 * (1 << 30)) << row.billions;
  }
}

TEST(PlanTest, SaysWhichTokensARankHas) {
  const v1::TrainingSpec spec = Resolve(
      MockSpec("parallelism: {context_parallel_size: 2, tensor_model_parallel_size: 2, sequence_parallel: true, "
               "cp_comm_type: a2a}\n"));
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch model, ArchFromSpec(spec));
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec, model));
  EXPECT_THAT(PlanText(plan), HasSubstr("tp2 cp2 dp1"));
  EXPECT_THAT(PlanText(plan), HasSubstr("rank 3: dp 0 tp 1 pp 0 cp 1"));
  EXPECT_THAT(PlanText(plan),
              HasSubstr("tokens of a rank  16 of a micro-batch, two chunks of each row, attention by a2a, "
                        "8 between blocks (sequence parallel)"));
  EXPECT_EQ(PlanJson(plan)["tokens_between_blocks"], 8);
}

}  // namespace
}  // namespace slipway::engine::spec
