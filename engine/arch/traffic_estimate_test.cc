#include "engine/arch/traffic_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/arch/param_spec.h"
#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using topology::GroupKind;
using topology::Mesh;

std::vector<Traffic> Of(const MemoryOptions& options, int gpus_per_node) {
  const Mesh mesh = Mesh::Create(options.mesh).value();
  return EstimateTraffic(FindPreset("llama3_1_8b").value(), options, mesh, {.gpus_per_node = gpus_per_node}).value();
}

const Traffic* Find(const std::vector<Traffic>& traffic, const std::string& operation, GroupKind group) {
  for (const Traffic& one : traffic) {
    if (one.operation == operation && one.group == group) return &one;
  }
  return nullptr;
}

TEST(Traffic, OneRankSendsNothing) {
  EXPECT_TRUE(Of({.seq_length = 4096}, 8).empty());
}

TEST(Traffic, TensorParallelByHand) {
  MemoryOptions options{.mesh = {.tp = 4},
                        .bytes = StateBytes::Bf16Mixed(),
                        .seq_length = 4096,
                        .micro_batch_size = 2,
                        .num_microbatches = 3};
  const double activation = 2 * 4096.0 * 4096 * 2;
  const std::vector<Traffic> plain = Of(options, 8);
  ASSERT_EQ(plain.size(), 1u);
  // 32 layers of two blocks, forward and back; leaving the embedding and entering the head.
  EXPECT_EQ(plain[0].operations, 3 * (32 * 4 + 2));
  EXPECT_DOUBLE_EQ(plain[0].bytes, 3 * 130 * activation * 2 * 3 / 4);
  EXPECT_EQ(plain[0].node_bytes, 0);
  options.sequence_parallel = true;
  const std::vector<Traffic> sequence = Of(options, 2);
  const Traffic* gathers = Find(sequence, "all_gather", GroupKind::kTp);
  const Traffic* scatters = Find(sequence, "reduce_scatter", GroupKind::kTp);
  ASSERT_TRUE(gathers != nullptr && scatters != nullptr);
  EXPECT_EQ(gathers->operations, 3 * (32 * 6 + 4));
  EXPECT_EQ(scatters->operations, 3 * (32 * 4 + 2));
  EXPECT_DOUBLE_EQ(scatters->bytes, 3 * 130 * activation * 3 / 4);
  EXPECT_DOUBLE_EQ(scatters->node_bytes, scatters->bytes);  // of two ranks on a node one has its neighbour elsewhere
}

TEST(Traffic, ContextParallelByHand) {
  const MemoryOptions memory{.mesh = {.cp = 4}, .bytes = StateBytes::Bf16Mixed(), .seq_length = 16384};
  const Mesh mesh = Mesh::Create(memory.mesh).value();
  const auto sent = [&](const std::string& comm, const std::string& operation) {
    const ModelArch arch = FindPreset("llama3_1_8b").value();
    const std::vector<Traffic> traffic = EstimateTraffic(arch, memory, mesh, {.context_comm = comm}).value();
    return Find(traffic, operation, GroupKind::kCp)->bytes;
  };
  const double block = 4096.0 * 2 * 8 * 128 * 2;  // keys and values of a rank's tokens; their gradients take twice that
  EXPECT_DOUBLE_EQ(sent("p2p", "all_to_all"), 32 * (2 * 3 * block + 4 * 2 * block));
  EXPECT_DOUBLE_EQ(sent("all_gather", "all_gather"), 32 * 2 * 3 * block);
  EXPECT_DOUBLE_EQ(sent("all_gather", "reduce_scatter"), 32 * 3 * 2 * block);
  EXPECT_DOUBLE_EQ(sent("a2a", "all_to_all"), 32 * 2 * (2 * 4096.0 * 4096 * 2 + block) * 3 / 4);
}

TEST(Traffic, PipelineAndDataParallelByHand) {
  const MemoryOptions options{
      .mesh = {.dp = 2, .pp = 2}, .bytes = StateBytes::Bf16Mixed(), .seq_length = 4096, .num_microbatches = 4};
  const std::vector<Traffic> traffic = Of(options, 2);
  const Traffic* sent = Find(traffic, "send", GroupKind::kPp);
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->operations, 4);
  EXPECT_DOUBLE_EQ(sent->bytes, 4 * 4096.0 * 4096 * 2);
  EXPECT_DOUBLE_EQ(sent->node_bytes, 2 * sent->bytes);  // both ranks of the first node send to the second
  const Traffic* gradients = Find(traffic, "reduce_scatter", GroupKind::kDpCp);
  const Traffic* weights = Find(traffic, "all_gather", GroupKind::kDpCp);
  ASSERT_TRUE(gradients != nullptr && weights != nullptr);
  const double half = static_cast<double>(ParameterCount(FindPreset("llama3_1_8b").value())) / 2;
  EXPECT_NEAR(gradients->bytes / (half * 4 / 2), 1, 1e-3);
  EXPECT_NEAR(weights->bytes / (half * 2 / 2), 1, 1e-3);
  EXPECT_EQ(gradients->node_bytes, 0);
}

TEST(Traffic, NeighboursOnOtherNodes) {
  EXPECT_EQ(NeighboursOnOtherNodes({{0, 1}, {2, 3}}, 2, true), 0);
  EXPECT_EQ(NeighboursOnOtherNodes({{0, 2}, {1, 3}}, 2, true), 2);
  EXPECT_EQ(NeighboursOnOtherNodes({{0, 1, 2, 3}}, 2, true), 1);
  EXPECT_EQ(NeighboursOnOtherNodes({{2, 3, 0, 1}}, 2, false), 1);
  EXPECT_EQ(NeighboursOnOtherNodes({{0, 1, 2}}, 2, false), 1);
  EXPECT_EQ(NeighboursOnOtherNodes({{0}, {1}}, 1, true), 0);
}

TEST(Traffic, ExpertsByHand) {
  MemoryOptions options{.mesh = {.tp = 2, .dp = 4, .ep = 4, .etp = 1},
                        .bytes = StateBytes::Bf16Mixed(),
                        .seq_length = 4096,
                        .num_microbatches = 3,
                        .sequence_parallel = true};
  const Mesh mesh = Mesh::Create(options.mesh).value();
  ModelArch arch = FindPreset("qwen3_30b_a3b").value();
  const std::vector<Traffic> sent = EstimateTraffic(arch, options, mesh, {}).value();
  // There and back, forward and backward, 8 experts a token.
  const Traffic* tokens = Find(sent, "all_to_all", GroupKind::kEtpEp);
  ASSERT_NE(tokens, nullptr);
  EXPECT_EQ(tokens->operations, 3 * 48 * 4);
  EXPECT_DOUBLE_EQ(tokens->bytes, 3 * 48 * 4 * (4096.0 / 2 * 2048 * 2 * 8) * 3 / 4);
  // Attention alone is a tensor-parallel block.
  EXPECT_EQ(Find(sent, "reduce_scatter", GroupKind::kTp)->operations, 3 * (48 * 2 + 2));
  // A quarter of the experts on each rank, summed over two.
  const Traffic* gradients = Find(sent, "reduce_scatter", GroupKind::kEdp);
  ASSERT_NE(gradients, nullptr);
  EXPECT_DOUBLE_EQ(gradients->bytes, 48.0 * 128 / 4 * 3 * 2048 * 768 * 4 / 2);
  arch.moe->dispatcher = Dispatcher::kAllGather;
  const std::vector<Traffic> gathered = EstimateTraffic(arch, options, mesh, {}).value();
  EXPECT_EQ(Find(gathered, "all_to_all", GroupKind::kEtpEp), nullptr);
  EXPECT_DOUBLE_EQ(Find(gathered, "all_gather", GroupKind::kEtpEp)->bytes,
                   3 * 48 * 2 * (4096.0 / 2 * 4 * 2048 * 2) * 3 / 4);
}

}  // namespace
}  // namespace slipway::engine::arch
