#include "engine/arch/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/status_matchers.h"

namespace slipway::engine::arch {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelArch TinyArch(bool tied) {
  ModelArch arch;
  arch.family = Family::kQwen3;
  arch.num_layers = 2;
  arch.hidden_size = 48;
  arch.num_attention_heads = 4;
  arch.num_query_groups = 2;
  arch.kv_channels = 16;
  arch.ffn_hidden_size = 80;
  arch.vocab_size = 261;
  arch.max_position_embeddings = 64;
  arch.rotary_base = 10000;
  arch.norm_epsilon = 1e-6;
  arch.qk_layernorm = true;
  arch.untie_embeddings_and_output_weights = !tied;
  return arch;
}

std::vector<Piece> Pieces(int first_layer, int layers, bool embedding, bool head) {
  std::vector<Piece> pieces;
  if (embedding) pieces.push_back({Piece::Kind::kEmbedding});
  for (int i = 0; i < layers; ++i) pieces.push_back({Piece::Kind::kLayer, first_layer + i});
  if (head) pieces.push_back({Piece::Kind::kHead});
  return pieces;
}

const PlannedGroup& GroupNamed(const BucketPlan& plan, const std::string& name) {
  return plan.groups[plan.group_of_name.at(name)];
}

// Every group lies in its bucket, aligned, and no two overlap; buckets cut evenly.
void CheckPlaces(const BucketPlan& plan) {
  std::map<int, std::vector<ElementRange>> taken;
  for (const PlannedGroup& group : plan.groups) {
    EXPECT_EQ(group.offset % kGroupAlignment, 0) << group.name;
    taken[group.bucket].push_back({group.offset, group.offset + group.Elements()});
    EXPECT_LE(group.offset + group.Elements(), plan.buckets[group.bucket].elements);
    int64_t filled = group.offset;
    for (const PlannedShare& share : group.shares) {
      EXPECT_EQ(share.offset, filled) << group.name;
      filled += share.elements;
    }
    EXPECT_LE(filled, group.offset + group.Elements());
  }
  for (auto& [bucket, ranges] : taken) {
    std::sort(ranges.begin(), ranges.end(),
              [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].end, ranges[i].begin);
    EXPECT_EQ(plan.buckets[bucket].elements % (kGroupAlignment * plan.buckets[bucket].shards), 0);
  }
}

TEST(BucketPlan, OneRankHoldsTheWholeTable) {
  const std::vector<ParamSpec> table = BuildParamTable(TinyArch(false));
  ASSERT_OK_AND_ASSIGN(const BucketPlan plan, PlanBuckets(table, Pieces(0, 2, true, true), {.bucket_elements = 9000}));
  CheckPlaces(plan);
  std::set<int> specs;
  for (const PlannedGroup& group : plan.groups) {
    for (const PlannedShare& share : group.shares) {
      EXPECT_TRUE(specs.insert(share.spec).second);
      EXPECT_EQ(share.elements, table[share.spec].NumElements());
      EXPECT_TRUE(share.primary);
      EXPECT_EQ(share.tp_grad_sum, 1);
      EXPECT_EQ(share.offset < plan.buckets[group.bucket].decay_elements, table[share.spec].weight_decay);
    }
  }
  EXPECT_EQ(specs.size(), table.size());
  EXPECT_THAT(GroupNamed(plan, "layers.1.attention.qkv").shape, ElementsAre(64 + 32 + 32, 48));
  EXPECT_THAT(GroupNamed(plan, "embedding").shape, ElementsAre(384, 48));  // 261 rows padded to 3 × 128
  // The head's bucket is ready first, the one with the embedding last.
  EXPECT_EQ(GroupNamed(plan, "output_layer").bucket, 0);
  EXPECT_EQ(GroupNamed(plan, "embedding").bucket, static_cast<int>(plan.buckets.size()) - 1);
  for (const PlannedBucket& bucket : plan.buckets) EXPECT_FALSE(bucket.tied_across_stages);
}

TEST(BucketPlan, BucketsFollowPieces) {
  std::vector<ParamSpec> table = BuildParamTable(TinyArch(false));
  // One piece after another fills a bucket; one that is large enough stands alone.
  for (const auto& [limit, buckets] : std::map<int64_t, size_t>{{1, 4}, {18000, 4}, {25000, 2}, {1 << 20, 1}}) {
    ASSERT_OK_AND_ASSIGN(const BucketPlan plan,
                         PlanBuckets(table, Pieces(0, 2, true, true), {.bucket_elements = limit}));
    CheckPlaces(plan);
    EXPECT_EQ(plan.buckets.size(), buckets) << limit;
    std::map<std::pair<Piece::Kind, int>, std::set<int>> buckets_of_piece;
    for (const PlannedGroup& group : plan.groups) {
      const Piece& piece = table[group.shares[0].spec].piece;
      buckets_of_piece[{piece.kind, piece.layer}].insert(group.bucket);
    }
    for (const auto& [piece, of_piece] : buckets_of_piece) EXPECT_EQ(of_piece.size(), 1u) << limit;
  }
  for (ParamSpec& spec : table) spec.trainable = spec.shape.size() > 1;
  ASSERT_OK_AND_ASSIGN(const BucketPlan plan, PlanBuckets(table, Pieces(0, 2, true, true), {}));
  EXPECT_EQ(plan.buckets.size(), 2u);  // the norms are frozen
}

TEST(BucketPlan, CountedElementsLeaveOutAlignment) {
  const std::vector<ParamSpec> table = BuildParamTable(TinyArch(false));
  ASSERT_OK_AND_ASSIGN(const BucketPlan plan, PlanBuckets(table, Pieces(0, 2, true, true), {.shards = 3}));
  int64_t counted = 0, expected = 0;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets.size()); ++bucket) {
    for (int shard = 0; shard < 3; ++shard) counted += CountedElements(plan, bucket, shard);
  }
  for (const ParamSpec& spec : table) expected += spec.NumElements();
  EXPECT_EQ(counted, expected);
}

TEST(BucketPlan, ATiedUseSharesStorageOrHasABucketOfItsOwn) {
  const std::vector<ParamSpec> table = BuildParamTable(TinyArch(true));
  ASSERT_OK_AND_ASSIGN(const BucketPlan whole, PlanBuckets(table, Pieces(0, 2, true, true), {}));
  EXPECT_EQ(whole.group_of_name.at("output_layer"), whole.group_of_name.at("embedding"));
  EXPECT_FALSE(whole.buckets[GroupNamed(whole, "embedding").bucket].tied_across_stages);

  ASSERT_OK_AND_ASSIGN(const BucketPlan first, PlanBuckets(table, Pieces(0, 1, true, false), {.shards = 2}));
  ASSERT_OK_AND_ASSIGN(const BucketPlan last, PlanBuckets(table, Pieces(1, 1, false, true), {.shards = 2}));
  CheckPlaces(first);
  CheckPlaces(last);
  const PlannedGroup& embedding = GroupNamed(first, "embedding");
  const PlannedGroup& output = GroupNamed(last, "output_layer");
  EXPECT_TRUE(first.buckets[embedding.bucket].tied_across_stages);
  EXPECT_TRUE(last.buckets[output.bucket].tied_across_stages);
  EXPECT_EQ(embedding.offset, 0);
  EXPECT_EQ(output.offset, 0);
  EXPECT_EQ(first.buckets[embedding.bucket].elements, last.buckets[output.bucket].elements);
  EXPECT_TRUE(embedding.shares[0].primary);
  EXPECT_FALSE(output.shares[0].primary);
  EXPECT_THAT(CountedRanges(last, output.bucket, 0), IsEmpty());
}

TEST(BucketPlan, TensorRanksCountEachElementOnce) {
  for (const int tp : {1, 2, 4}) {
    const std::vector<ParamSpec> table = BuildParamTable(TinyArch(false));
    std::map<int, int64_t> counted;  // by spec: elements of primary shares
    int64_t in_ranges = 0;
    for (int rank = 0; rank < tp; ++rank) {
      ASSERT_OK_AND_ASSIGN(const BucketPlan plan, PlanBuckets(table, Pieces(0, 2, true, true),
                                                              {.tp = {.rank = rank, .size = tp}, .shards = 3}));
      CheckPlaces(plan);
      for (const PlannedGroup& group : plan.groups) {
        for (const PlannedShare& share : group.shares) counted[share.spec] += share.primary ? share.elements : 0;
      }
      for (int bucket = 0; bucket < static_cast<int>(plan.buckets.size()); ++bucket) {
        for (int shard = 0; shard < 3; ++shard) {
          const int64_t size = plan.ShardElements(bucket);
          for (const ElementRange& range : CountedRanges(plan, bucket, shard)) {
            EXPECT_GE(range.begin, shard * size);
            EXPECT_LE(range.end, (shard + 1) * size);
            in_ranges += range.size();
          }
        }
      }
    }
    int64_t total = 0;
    for (const auto& [spec, elements] : counted) {
      EXPECT_EQ(elements, table[spec].NumElements()) << table[spec].name << " tp " << tp;
      total += elements;
    }
    EXPECT_GE(in_ranges, total);
    EXPECT_LE(in_ranges, total + 64 * 64);  // alignment between neighbours
  }
}

TEST(BucketPlan, SharedHeadsAreNotCountedTwice) {
  // 2 key/value heads on 4 ranks: ranks 1 and 3 hold copies.
  const std::vector<ParamSpec> table = BuildParamTable(TinyArch(false));
  ASSERT_OK_AND_ASSIGN(const BucketPlan plan,
                       PlanBuckets(table, Pieces(0, 1, false, false), {.tp = {.rank = 1, .size = 4}}));
  const PlannedGroup& qkv = GroupNamed(plan, "layers.0.attention.qkv");
  EXPECT_THAT(qkv.shape, ElementsAre(16 + 16 + 16, 48));
  EXPECT_TRUE(qkv.shares[0].primary);
  EXPECT_FALSE(qkv.shares[1].primary);
  EXPECT_FALSE(qkv.shares[2].primary);
  const ElementRange everything{0, plan.buckets[qkv.bucket].elements};
  EXPECT_THAT(TpSumRanges(plan, qkv.bucket, everything),
              Contains(TpSumRange{qkv.bucket, {qkv.offset + 768, qkv.offset + 3 * 768}, 2}));
  for (const ElementRange& range : CountedRanges(plan, qkv.bucket, 0)) {
    EXPECT_TRUE(range.end <= qkv.offset + 768 || range.begin >= qkv.offset + 3 * 768)
        << range.begin << " " << range.end;
  }
  // The head norms are summed over all ranks and clipped to the window.
  const PlannedGroup& norm = GroupNamed(plan, "layers.0.attention.q_norm");
  EXPECT_THAT(TpSumRanges(plan, norm.bucket, {norm.offset + 5, norm.offset + 9}),
              ElementsAre(TpSumRange{norm.bucket, {norm.offset + 5, norm.offset + 9}, 4}));
}

TEST(BucketPlan, RefusesTablesThatDoNotFit) {
  std::vector<ParamSpec> table = BuildParamTable(TinyArch(true));
  EXPECT_THAT(PlanBuckets(table, Pieces(0, 2, true, true), {.tp = {.rank = 0, .size = 3}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3")));
  std::vector<ParamSpec> broken = table;
  broken.back().tied_to = "model.nothing";
  EXPECT_THAT(PlanBuckets(broken, Pieces(0, 2, true, true), {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lm_head.weight: is tied to model.nothing")));
  broken = table;
  std::erase_if(broken, [](const ParamSpec& spec) { return spec.name == "model.layers.0.mlp.up_proj.weight"; });
  EXPECT_THAT(PlanBuckets(broken, Pieces(0, 2, true, true), {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layers.0.mlp.gate_up has 1 of 2 members")));
  broken = table;
  for (ParamSpec& spec : broken) {
    if (spec.name == "model.layers.0.mlp.up_proj.weight") spec.trainable = false;
  }
  EXPECT_THAT(PlanBuckets(broken, Pieces(0, 2, true, true), {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("up_proj")));
  EXPECT_THAT(PlanBuckets(table, Pieces(0, 2, true, true), {.shards = 0}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 1")));
}

}  // namespace
}  // namespace slipway::engine::arch
