#include "engine/topology/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/status_matchers.h"

namespace slipway::engine::topology {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Ranks = std::vector<int>;

std::vector<MeshSizes> ManySizes() {
  std::vector<MeshSizes> all;
  for (int tp : {1, 2, 3}) {
    for (int cp : {1, 2}) {
      for (int dp : {1, 2, 4}) {
        for (int pp : {1, 2, 3}) {
          for (int ep : {1, 2, 4}) {
            for (int etp : {1, tp}) {
              if (tp * cp * dp % (ep * etp) == 0) all.push_back({tp, cp, dp, pp, ep, etp});
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(Mesh, RanksFollowMegatronsFormula) {
  for (const MeshSizes& sizes : ManySizes()) {
    ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(sizes));
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const Coordinates at = mesh.CoordinatesOf(rank);
      ASSERT_EQ(rank, at.tp + sizes.tp * (at.cp + sizes.cp * (at.dp + sizes.dp * at.pp))) << MeshText(sizes);
      ASSERT_EQ(rank, at.etp + sizes.etp * (at.ep + sizes.ep * (at.edp + mesh.edp() * at.pp))) << MeshText(sizes);
      ASSERT_EQ(rank, mesh.RankOf(at));
      ASSERT_EQ(rank, mesh.ExpertRankOf(at));
    }
  }
}

TEST(Mesh, CoordinatesAreDistinct) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({2, 3, 5, 7}));
  std::set<std::array<int, 4>> seen;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.CoordinatesOf(rank);
    seen.insert({at.tp, at.cp, at.dp, at.pp});
  }
  EXPECT_EQ(seen.size(), 210u);
}

TEST(Mesh, GroupsPartitionTheWorldAndAgreeWithGroupOf) {
  for (const MeshSizes& sizes : ManySizes()) {
    ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(sizes));
    for (int k = 0; k < kNumGroupKinds; ++k) {
      const auto kind = static_cast<GroupKind>(k);
      if (kind == GroupKind::kEmbedding || kind == GroupKind::kPositionEmbedding) continue;
      std::vector<int> seen(mesh.world(), 0);
      for (const Ranks& group : mesh.Groups(kind)) {
        ASSERT_EQ(static_cast<int>(group.size()), mesh.GroupSize(kind));
        ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
        for (int rank : group) {
          ++seen[rank];
          ASSERT_EQ(mesh.GroupOf(kind, rank), group) << GroupKindName(kind) << " of " << MeshText(sizes);
        }
      }
      ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), mesh.world()) << GroupKindName(kind) << MeshText(sizes);
    }
  }
}

TEST(Mesh, MembersOfAGroupDifferOnlyAlongItsAxes) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .cp = 2, .dp = 3, .pp = 2, .ep = 3, .etp = 2}));
  for (int rank = 0; rank < mesh.world(); ++rank) {
    for (int member : mesh.GroupOf({Axis::kDp, Axis::kCp}, rank)) {
      EXPECT_EQ(mesh.CoordinateOf(Axis::kTp, member), mesh.CoordinateOf(Axis::kTp, rank));
      EXPECT_EQ(mesh.CoordinateOf(Axis::kPp, member), mesh.CoordinateOf(Axis::kPp, rank));
    }
    for (int member : mesh.GroupOf({Axis::kEp}, rank)) {
      EXPECT_EQ(mesh.CoordinateOf(Axis::kEtp, member), mesh.CoordinateOf(Axis::kEtp, rank));
      EXPECT_EQ(mesh.CoordinateOf(Axis::kEdp, member), mesh.CoordinateOf(Axis::kEdp, rank));
    }
  }
}

// The example of 16 ranks in the documentation of Megatron-LM's initialize_model_parallel: tp 2, pp 4, dp 2.
TEST(Mesh, SixteenRanksAsInMegatronsDocumentation) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .dp = 2, .pp = 4}));
  EXPECT_THAT(mesh.Groups(GroupKind::kDp), ElementsAre(Ranks{0, 2}, Ranks{1, 3}, Ranks{4, 6}, Ranks{5, 7}, Ranks{8, 10},
                                                       Ranks{9, 11}, Ranks{12, 14}, Ranks{13, 15}));
  EXPECT_THAT(mesh.Groups(GroupKind::kTp), ElementsAre(Ranks{0, 1}, Ranks{2, 3}, Ranks{4, 5}, Ranks{6, 7}, Ranks{8, 9},
                                                       Ranks{10, 11}, Ranks{12, 13}, Ranks{14, 15}));
  EXPECT_THAT(mesh.Groups(GroupKind::kPp),
              ElementsAre(Ranks{0, 4, 8, 12}, Ranks{1, 5, 9, 13}, Ranks{2, 6, 10, 14}, Ranks{3, 7, 11, 15}));
  EXPECT_THAT(mesh.Groups(GroupKind::kModel),
              ElementsAre(Ranks{0, 1, 4, 5, 8, 9, 12, 13}, Ranks{2, 3, 6, 7, 10, 11, 14, 15}));
  EXPECT_THAT(mesh.Groups(GroupKind::kEmbedding), ElementsAre(Ranks{0, 12}, Ranks{1, 13}, Ranks{2, 14}, Ranks{3, 15}));
  EXPECT_THAT(mesh.Groups(GroupKind::kPositionEmbedding), ElementsAre(Ranks{0}, Ranks{1}, Ranks{2}, Ranks{3}));
}

TEST(Mesh, ContextParallelVariesFastestInDpCp) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .cp = 2, .dp = 2}));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kDpCp, 0), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kCp, 0), ElementsAre(0, 2));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kDp, 0), ElementsAre(0, 4));
}

TEST(Mesh, ExpertGroups) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .dp = 4, .ep = 4, .etp = 1}));
  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_THAT(mesh.Groups(GroupKind::kEp), ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7}));
  EXPECT_THAT(mesh.Groups(GroupKind::kEdp), ElementsAre(Ranks{0, 4}, Ranks{1, 5}, Ranks{2, 6}, Ranks{3, 7}));
}

TEST(Mesh, EmbeddingGroupLeavesMiddleStagesOut) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .pp = 3}));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kEmbedding, 1), ElementsAre(1, 5));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kEmbedding, 3), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Mesh flat, Mesh::Create({.tp = 2}));
  EXPECT_THAT(flat.GroupOf(GroupKind::kEmbedding, 1), ElementsAre(1));
}

TEST(Mesh, AllGroupsListsOnlyWhatHasMoreThanOneRank) {
  ASSERT_OK_AND_ASSIGN(const Mesh single, Mesh::Create({}));
  EXPECT_THAT(single.AllGroups(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .pp = 2}));
  std::vector<GroupKind> kinds;
  for (const GroupList& list : mesh.AllGroups()) kinds.push_back(list.kind);
  EXPECT_THAT(kinds, ElementsAre(GroupKind::kTp, GroupKind::kTpCp, GroupKind::kTpDpCp, GroupKind::kModel,
                                 GroupKind::kPp, GroupKind::kEtpEpPp, GroupKind::kEdp, GroupKind::kEmbedding));
}

TEST(Mesh, DataParallelSlowestOrder) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 2, .dp = 2, .pp = 2, .etp = 2}, "tp-cp-ep-pp-dp"));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kPp, 0), ElementsAre(0, 2));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kDp, 0), ElementsAre(0, 4));
  // With etp = 1 the experts' data-parallel size differs, and with it the place of the pipeline neighbours.
  EXPECT_THAT(Mesh::Create({.tp = 2, .dp = 2, .pp = 2}, "tp-cp-ep-pp-dp"),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("dp (2)"), HasSubstr("edp (4)"))));
}

TEST(Mesh, RefusesBadSizesAndOrders) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Mesh::Create({.tp = 0}), StatusIs(kInvalid, HasSubstr("tp is 0")));
  EXPECT_THAT(Mesh::Create({.dp = -1}), StatusIs(kInvalid, HasSubstr("dp is -1")));
  EXPECT_THAT(Mesh::Create({.tp = 2, .ep = 3}), StatusIs(kInvalid, AllOf(HasSubstr("2 ranks"), HasSubstr("= 3"))));
  EXPECT_THAT(Mesh::Create({.tp = 1 << 20, .cp = 1 << 20, .dp = 1 << 20}),
              StatusIs(kInvalid, HasSubstr("above 1048576")));
  EXPECT_THAT(Mesh::Create({.tp = 2}, "cp-dp-pp"), StatusIs(kInvalid, HasSubstr("lacks tp, whose size is 2")));
  EXPECT_THAT(Mesh::Create({.tp = 2}, "tp-tp"), StatusIs(kInvalid, HasSubstr("tp twice")));
  EXPECT_THAT(Mesh::Create({}, "tp-xp"), StatusIs(kInvalid, HasSubstr("unknown axis \"xp\"")));
  EXPECT_THAT(Mesh::Create({}, ""), StatusIs(kInvalid, HasSubstr("unknown axis \"\"")));
}

TEST(Mesh, LargeWorlds) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.tp = 8, .cp = 2, .dp = 64, .pp = 16, .ep = 64, .etp = 1}));
  ASSERT_EQ(mesh.world(), 16384);
  size_t ranks = 0;
  for (const GroupList& list : mesh.AllGroups()) {
    for (const Ranks& group : list.groups) ranks += group.size();
  }
  EXPECT_EQ(ranks, 16384u * 12 + 2048u);  // etp alone has one rank; first and last stages make the embedding groups
}

}  // namespace
}  // namespace slipway::engine::topology
