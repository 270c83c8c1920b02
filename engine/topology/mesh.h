// How the ranks of a job are laid out over the axes of parallelism, as pure arithmetic: no process group is made here.
//
//   SLIPWAY_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.tp = 2, .dp = 4, .pp = 2}));
//   mesh.CoordinatesOf(5);                          // {.tp = 1, .cp = 0, .dp = 2, .pp = 0, ...}
//   mesh.GroupOf({Axis::kCp, Axis::kDp}, 5);        // the ranks that sum a dense gradient with rank 5
//   for (const GroupList& list : mesh.AllGroups())  // every group of the job, in the order in which all ranks make
//   them
//
// The layout is Megatron-LM's (megatron/core/parallel_state.py): two views of the same ranks. The dense view has the
// axes tp, cp, dp, pp; the expert view has etp, ep, edp, pp, with edp = world / (etp * ep * pp). In both the leftmost
// axis of the order string varies fastest. Thread-safe: a Mesh is immutable after Create.
#ifndef SLIPWAY_ENGINE_TOPOLOGY_MESH_H_
#define SLIPWAY_ENGINE_TOPOLOGY_MESH_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::engine::topology {

enum class Axis : uint8_t { kTp, kCp, kEp, kDp, kPp, kEtp, kEdp };
inline constexpr int kNumAxes = 7;

// "tp", "cp", "ep", "dp", "pp", "etp", "edp".
std::string_view AxisName(Axis axis);

struct MeshSizes {
  int tp = 1;   // tensor parallel
  int cp = 1;   // context parallel
  int dp = 1;   // data parallel
  int pp = 1;   // pipeline parallel
  int ep = 1;   // expert parallel
  int etp = 1;  // tensor parallel inside an expert

  int64_t World() const { return int64_t{tp} * cp * dp * pp; }

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

// "tp2 cp1 dp4 pp2 ep1 etp1 (16 ranks)".
std::string MeshText(const MeshSizes& sizes);

// Where a rank stands on every axis of both views.
struct Coordinates {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  int ep = 0;
  int etp = 0;
  int edp = 0;

  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

// The groups that a job can need, in the order in which they are made.
enum class GroupKind : uint8_t {
  kTp,
  kCp,
  kDp,
  kDpCp,  // dense gradients are summed over it; context parallel varies fastest
  kTpCp,
  kTpDpCp,
  kModel,  // tp x pp: the ranks that hold one copy of the dense model
  kPp,
  kEtp,
  kEp,
  kEtpEp,
  kEtpEpPp,           // the ranks that hold one copy of all experts
  kEdp,               // expert gradients are summed over it
  kEmbedding,         // first and last pipeline stage: they share a tied embedding
  kPositionEmbedding  // first pipeline stage alone
};
inline constexpr int kNumGroupKinds = 15;

// "tp", "cp", "dp", "dp-cp", "tp-cp", "tp-dp-cp", "model", "pp", "etp", "ep", "etp-ep", "etp-ep-pp", "edp",
// "embedding", "position-embedding".
std::string_view GroupKindName(GroupKind kind);

struct GroupList {
  GroupKind kind;
  std::vector<std::vector<int>> groups;  // rank lists, each in the order of its group ranks
};

inline constexpr std::string_view kDefaultRankOrder = "tp-cp-ep-dp-pp";
inline constexpr int64_t kMaxWorld = 1 << 20;

class Mesh {
 public:
  // `order` names axes from the fastest to the slowest, as Megatron-LM's `order`; an axis of size 1 may be left out.
  // InvalidArgument with both numbers when a size is below 1, the world exceeds kMaxWorld, the expert view does not
  // divide the world, the order has an unknown, repeated or missing axis, or the two views disagree on the pipeline
  // groups.
  static absl::StatusOr<Mesh> Create(const MeshSizes& sizes, std::string_view order = kDefaultRankOrder);

  const MeshSizes& sizes() const { return sizes_; }
  const std::string& order() const { return order_; }
  int world() const { return world_; }
  int edp() const { return edp_; }
  // The number of ranks along an axis.
  int Size(Axis axis) const { return axes_[static_cast<int>(axis)].size; }

  // REQUIRES: 0 <= rank < world().
  Coordinates CoordinatesOf(int rank) const;
  int CoordinateOf(Axis axis, int rank) const;
  // The rank at dense coordinates (ep, etp and edp are ignored). REQUIRES: each within its axis.
  int RankOf(const Coordinates& coordinates) const;
  // The rank at expert coordinates (tp, cp and dp are ignored). REQUIRES: each within its axis.
  int ExpertRankOf(const Coordinates& coordinates) const;

  // All groups of ranks that differ only along `axes`: they partition the world. Groups are ordered by their fixed
  // coordinates and ranks inside a group by the varying ones, the fastest axis of the order first.
  // REQUIRES: axes of one view only (kTp, kCp, kDp, kPp or kEtp, kEp, kEdp, kPp).
  std::vector<std::vector<int>> Groups(std::initializer_list<Axis> axes) const;
  // The group of Groups(axes) that holds `rank`.
  std::vector<int> GroupOf(std::initializer_list<Axis> axes, int rank) const;

  // The groups of a kind. Those of kEmbedding and kPositionEmbedding do not hold every rank.
  std::vector<std::vector<int>> Groups(GroupKind kind) const;
  // The group of a kind that holds `rank`; empty for a rank of a middle stage in kEmbedding, and alike.
  std::vector<int> GroupOf(GroupKind kind, int rank) const;
  // The number of ranks of one group of a kind (the embedding group has two, or one without pipeline parallelism).
  int GroupSize(GroupKind kind) const;

  // Every group with more than one rank, by kind and then in the order of Groups(kind): all ranks make their process
  // groups by walking this list, so that no two of them wait for each other.
  std::vector<GroupList> AllGroups() const;

 private:
  struct AxisLayout {
    int size = 1;
    int stride = 1;
  };

  Mesh() = default;
  std::vector<Axis> Ordered(std::initializer_list<Axis> axes, bool inside) const;
  std::vector<int> OffsetsOf(const std::vector<Axis>& axes) const;

  MeshSizes sizes_;
  std::string order_;
  int world_ = 1;
  int edp_ = 1;
  std::array<AxisLayout, kNumAxes> axes_;
  std::vector<Axis> dense_order_;   // fastest first
  std::vector<Axis> expert_order_;  // fastest first
};

}  // namespace slipway::engine::topology

#endif  // SLIPWAY_ENGINE_TOPOLOGY_MESH_H_
