#include "engine/arch/param_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/arch/presets.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Shape = std::vector<int64_t>;

ModelArch Preset(std::string_view name) { return FindPreset(name).value(); }

ParamSpec Find(const std::vector<ParamSpec>& table, const std::string& name) {
  for (const ParamSpec& spec : table) {
    if (spec.name == name) return spec;
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

std::map<std::string, Shape> StoredShapes(const ModelArch& arch) {
  std::map<std::string, Shape> shapes;
  for (const ParamSpec& spec : BuildParamTable(arch)) {
    if (!spec.tied_to.has_value()) shapes[spec.name] = spec.shape;
  }
  return shapes;
}

// What transformers' Llama state dict holds for the sizes of the tiny presets.
std::map<std::string, Shape> HuggingFaceShapes(int64_t head_dim, bool untied) {
  std::map<std::string, Shape> shapes = {{"model.embed_tokens.weight", {260, 64}}, {"model.norm.weight", {64}}};
  if (untied) shapes["lm_head.weight"] = {260, 64};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = absl::StrCat("model.layers.", layer, ".");
    shapes[p + "input_layernorm.weight"] = {64};
    shapes[p + "post_attention_layernorm.weight"] = {64};
    shapes[p + "self_attn.q_proj.weight"] = {4 * head_dim, 64};
    shapes[p + "self_attn.k_proj.weight"] = {2 * head_dim, 64};
    shapes[p + "self_attn.v_proj.weight"] = {2 * head_dim, 64};
    shapes[p + "self_attn.o_proj.weight"] = {64, 4 * head_dim};
    shapes[p + "mlp.gate_proj.weight"] = {160, 64};
    shapes[p + "mlp.up_proj.weight"] = {160, 64};
    shapes[p + "mlp.down_proj.weight"] = {64, 160};
  }
  return shapes;
}

TEST(ParamTable, HoldsExactlyHuggingFacesTensors) {
  EXPECT_EQ(StoredShapes(Preset("tiny_llama")), HuggingFaceShapes(16, true));

  std::map<std::string, Shape> qwen2 = HuggingFaceShapes(16, false);
  std::map<std::string, Shape> qwen3 = HuggingFaceShapes(32, true);
  for (const char* p : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
    qwen2[absl::StrCat(p, "q_proj.bias")] = {64};
    qwen2[absl::StrCat(p, "k_proj.bias")] = {32};
    qwen2[absl::StrCat(p, "v_proj.bias")] = {32};
    qwen3[absl::StrCat(p, "q_norm.weight")] = {32};
    qwen3[absl::StrCat(p, "k_norm.weight")] = {32};
  }
  EXPECT_EQ(StoredShapes(Preset("tiny_qwen2")), qwen2);
  EXPECT_EQ(StoredShapes(Preset("tiny_qwen3")), qwen3);
}

TEST(ParamTable, NamesAndFuseGroupsAreSound) {
  for (std::string_view preset : {"tiny_llama", "tiny_qwen2", "tiny_qwen3", "llama3_2_1b"}) {
    std::set<std::string> names;
    std::map<std::string, int> members;
    const std::vector<ParamSpec> table = BuildParamTable(Preset(preset));
    for (size_t i = 0; i < table.size(); ++i) {
      const ParamSpec& spec = table[i];
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      EXPECT_EQ(members[spec.fuse_group.name]++, spec.fuse_group.index) << spec.name;
      // Members stand side by side and are cut alike.
      if (spec.fuse_group.index > 0) {
        EXPECT_EQ(table[i - 1].fuse_group.name, spec.fuse_group.name);
        EXPECT_EQ(table[i - 1].tp_shard_dim, spec.tp_shard_dim);
        EXPECT_EQ(table[i - 1].piece, spec.piece);
      }
      EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2) << spec.name;
    }
    for (const ParamSpec& spec : table) EXPECT_EQ(members[spec.fuse_group.name], spec.fuse_group.count) << spec.name;
  }
  const std::vector<ParamSpec> table = BuildParamTable(Preset("tiny_qwen2"));
  EXPECT_EQ(Find(table, "model.layers.1.self_attn.k_proj.weight").fuse_group,
            (FuseGroup{"layers.1.attention.qkv", 1, 3}));
  EXPECT_EQ(Find(table, "model.layers.1.self_attn.v_proj.bias").fuse_group,
            (FuseGroup{"layers.1.attention.qkv_bias", 2, 3}));
  EXPECT_EQ(Find(table, "model.layers.0.mlp.up_proj.weight").fuse_group, (FuseGroup{"layers.0.mlp.gate_up", 1, 2}));
  EXPECT_EQ(Find(table, "model.layers.0.mlp.down_proj.weight").fuse_group, (FuseGroup{"layers.0.mlp.down", 0, 1}));
}

TEST(ParamTable, CanonicalOrderByPiece) {
  const std::vector<ParamSpec> table = BuildParamTable(Preset("tiny_qwen3"));
  EXPECT_EQ(table.front().piece, (Piece{Piece::Kind::kEmbedding}));
  EXPECT_EQ(table.back().name, kHeadName);
  EXPECT_TRUE(std::is_sorted(table.begin(), table.end(), [](const ParamSpec& a, const ParamSpec& b) {
    return std::pair(a.piece.kind, a.piece.layer) < std::pair(b.piece.kind, b.piece.layer);
  }));
}

TEST(ParamTable, TiedOutputLayerIsAnAlias) {
  EXPECT_EQ(Find(BuildParamTable(Preset("tiny_qwen2")), kHeadName).tied_to, kEmbeddingName);
  EXPECT_EQ(Find(BuildParamTable(Preset("tiny_qwen3")), kHeadName).tied_to, std::nullopt);
}

TEST(ParamTable, Initialisation) {
  const std::vector<ParamSpec> table = BuildParamTable(Preset("tiny_qwen2"));
  EXPECT_EQ(Find(table, kEmbeddingName).init, (Init{Init::Kind::kNormal, 0.02}));
  EXPECT_EQ(Find(table, "model.layers.0.mlp.down_proj.weight").init,
            (Init{Init::Kind::kNormal, 0.02 / std::sqrt(4.0)}));
  EXPECT_EQ(Find(table, "model.layers.0.self_attn.o_proj.weight").init,
            (Init{Init::Kind::kNormal, 0.02 / std::sqrt(4.0)}));
  EXPECT_EQ(Find(table, "model.layers.0.self_attn.q_proj.bias").init, (Init{Init::Kind::kZeros}));
  EXPECT_EQ(Find(table, "model.norm.weight").init, (Init{Init::Kind::kOnes}));
}

TEST(LocalRange, EveryCutCoversTheWholeTensorOnce) {
  for (std::string_view preset : {"tiny_llama", "tiny_qwen2", "tiny_qwen3"}) {
    for (const ParamSpec& spec : BuildParamTable(Preset(preset))) {
      for (int size : {1, 2, 4}) {
        for (int dim = 0; dim < static_cast<int>(spec.shape.size()); ++dim) {
          std::vector<int> holders(spec.shape[dim], 0);
          std::set<int64_t> extents;
          for (int rank = 0; rank < size; ++rank) {
            ASSERT_OK_AND_ASSIGN(const ShardRange range, LocalRange(spec, dim, {rank, size, 8}));
            for (int64_t i = range.begin; i < range.begin + range.count; ++i) ++holders[i];
            extents.insert(range.Extent());
          }
          const int expected = spec.tp_shard_dim == dim ? TpReplicas(spec, size) : size;
          ASSERT_THAT(holders, ::testing::Each(expected)) << spec.name << " dim " << dim << " tp " << size;
          ASSERT_EQ(extents.size(), 1u) << spec.name;
        }
      }
    }
  }
}

TEST(LocalRange, KeyValueHeadsFollowTheirQueryHeads) {
  // 8 query heads in 2 groups of 4: with 4 ranks, ranks 0 and 1 share key/value head 0.
  ModelArch arch = Preset("tiny_llama");
  arch.num_attention_heads = 8;
  const std::vector<ParamSpec> table = BuildParamTable(arch);
  const ParamSpec q = Find(table, "model.layers.0.self_attn.q_proj.weight");
  const ParamSpec k = Find(table, "model.layers.0.self_attn.k_proj.weight");
  for (int size : {1, 2, 4, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_OK_AND_ASSIGN(const ShardRange q_rows, LocalRange(q, 0, {rank, size}));
      ASSERT_OK_AND_ASSIGN(const ShardRange k_rows, LocalRange(k, 0, {rank, size}));
      for (int64_t head = q_rows.begin / 16; head < (q_rows.begin + q_rows.count) / 16; ++head) {
        const int64_t group = head / 4;
        EXPECT_GE(group * 16, k_rows.begin);
        EXPECT_LE(group * 16 + 16, k_rows.begin + k_rows.count);
      }
    }
  }
  EXPECT_EQ(TpReplicas(k, 4), 2);
  EXPECT_EQ(TpReplicas(k, 2), 1);
  EXPECT_EQ(TpReplicas(q, 4), 1);
}

TEST(LocalRange, CutsFallBetweenHeads) {
  // 6 heads on 4 ranks: 96 rows would divide, heads do not.
  ModelArch arch = Preset("tiny_llama");
  arch.num_attention_heads = 6;
  const std::vector<ParamSpec> table = BuildParamTable(arch);
  EXPECT_THAT(LocalRange(Find(table, "model.layers.0.self_attn.q_proj.weight"), 0, {0, 4}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("q_proj"), HasSubstr("6 heads of 16"), HasSubstr("4 tensor"))));
  EXPECT_THAT(LocalRange(Find(table, "model.layers.0.self_attn.o_proj.weight"), 1, {0, 4}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6 heads of 16")));
  EXPECT_THAT(LocalRange(Find(table, "model.layers.0.self_attn.k_proj.weight"), 0, {0, 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 heads of 16")));
  EXPECT_THAT(LocalRange(Find(table, "model.layers.0.mlp.down_proj.weight"), 1, {0, 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("160"), HasSubstr("3 tensor"))));
}

TEST(LocalRange, PaddedVocabulary) {
  EXPECT_EQ(PaddedVocabSize(50257, 128, 1), 50304);
  EXPECT_EQ(PaddedVocabSize(50257, 128, 4), 50688);
  EXPECT_EQ(PaddedVocabSize(261, 1, 2), 262);
  const ParamSpec embedding = Find(BuildParamTable(Preset("tiny_llama")), kEmbeddingName);
  ASSERT_OK_AND_ASSIGN(const ShardRange first, LocalRange(embedding, 0, {0, 4, 128}));
  EXPECT_EQ(first, (ShardRange{0, 128, 0}));
  ASSERT_OK_AND_ASSIGN(const ShardRange third, LocalRange(embedding, 0, {2, 4, 128}));
  EXPECT_EQ(third, (ShardRange{256, 4, 124}));
  ASSERT_OK_AND_ASSIGN(const ShardRange last, LocalRange(embedding, 0, {3, 4, 128}));
  EXPECT_EQ(last, (ShardRange{260, 0, 128}));
  ASSERT_OK_AND_ASSIGN(const Shape shape, LocalShape(embedding, {3, 4, 128}));
  EXPECT_THAT(shape, ElementsAre(128, 64));
}

TEST(LocalRange, RefusesBadPlaces) {
  const ParamSpec norm = Find(BuildParamTable(Preset("tiny_llama")), "model.norm.weight");
  EXPECT_THAT(LocalRange(norm, 1, {}), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("no dimension 1")));
  EXPECT_THAT(LocalRange(norm, 0, {2, 2}), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("rank 2 of 2")));
}

TEST(TpGradSumRanks, FollowsWhatEachRankSees) {
  const std::vector<ParamSpec> table = BuildParamTable(Preset("tiny_qwen3"));
  const ParamSpec norm = Find(table, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(TpGradSumRanks(norm, 4, false), 1);
  EXPECT_EQ(TpGradSumRanks(norm, 4, true), 4);
  const ParamSpec q_norm = Find(table, "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(TpGradSumRanks(q_norm, 4, false), 4);
  EXPECT_EQ(TpGradSumRanks(q_norm, 4, true), 4);
  const ParamSpec k = Find(table, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(TpGradSumRanks(k, 2, true), 1);
  EXPECT_EQ(TpGradSumRanks(k, 4, false), 2);
  EXPECT_EQ(TpGradSumRanks(Find(table, kEmbeddingName), 4, true), 1);
}

}  // namespace
}  // namespace slipway::engine::arch
