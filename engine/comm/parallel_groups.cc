#include "engine/comm/parallel_groups.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/self_communicator.h"

namespace slipway::engine::comm {
namespace {

using topology::GroupKind;

// Makes the groups of one kind and returns the one that holds this rank; collective groups with the same ranks are
// shared.
class GroupMaker {
 public:
  GroupMaker(int rank, GroupFactory& factory) : rank_(rank), factory_(factory) {}

  CommPtr Collective(const std::string& name, const std::vector<std::vector<int>>& groups) {
    const auto known =
        std::find_if(made_.begin(), made_.end(), [&](const Made& made) { return made.groups == groups; });
    if (known != made_.end()) return known->own;
    CommPtr own = Alone(name, groups);
    made_.push_back({groups, own});
    return own;
  }

  CommPtr Alone(const std::string& name, const std::vector<std::vector<int>>& groups) {
    CommPtr own;
    for (const std::vector<int>& ranks : groups) {
      if (ranks.size() < 2) continue;
      if (CommPtr made = factory_.MakeGroup(name, ranks)) own = std::move(made);
    }
    return own ? own : MakeSelfCommunicator(name);
  }

 private:
  struct Made {
    std::vector<std::vector<int>> groups;
    CommPtr own;
  };

  int rank_;
  GroupFactory& factory_;
  std::vector<Made> made_;
};

}  // namespace

ParallelGroups MakeParallelGroups(const topology::Mesh& mesh, int rank, GroupFactory& factory) {
  GroupMaker maker(rank, factory);
  ParallelGroups groups;
  groups.tp = maker.Collective("tp", mesh.Groups(GroupKind::kTp));
  groups.cp = maker.Collective("cp", mesh.Groups(GroupKind::kCp));
  groups.dp = maker.Collective("dp", mesh.Groups(GroupKind::kDp));
  groups.dp_cp = maker.Collective("dp-cp", mesh.Groups(GroupKind::kDpCp));
  groups.tp_cp = maker.Collective("tp-cp", mesh.Groups(GroupKind::kTpCp));
  groups.tp_dp_cp = maker.Collective("tp-dp-cp", mesh.Groups(GroupKind::kTpDpCp));
  groups.etp = maker.Collective("etp", mesh.Groups(GroupKind::kEtp));
  groups.etp_ep = maker.Collective("etp-ep", mesh.Groups(GroupKind::kEtpEp));
  groups.edp = maker.Collective("edp", mesh.Groups(GroupKind::kEdp));
  groups.model = maker.Collective("model", mesh.Groups(GroupKind::kModel));
  groups.pp = maker.Alone("pp", mesh.Groups(GroupKind::kPp));
  groups.pp_back = maker.Alone("pp-back", mesh.Groups(GroupKind::kPp));
  const bool meet = mesh.sizes().pp == 2;
  groups.pp_around = meet ? maker.Alone("pp-around", mesh.Groups(GroupKind::kPp)) : groups.pp;
  groups.pp_around_back = meet ? maker.Alone("pp-around-back", mesh.Groups(GroupKind::kPp)) : groups.pp_back;
  groups.embedding = maker.Collective("embedding", mesh.Groups(GroupKind::kEmbedding));
  std::vector<int> everybody(mesh.world());
  std::iota(everybody.begin(), everybody.end(), 0);
  groups.world = maker.Collective("world", {everybody});
  return groups;
}

ParallelGroups MakeSoloGroups() {
  // Groups below two ranks are not asked of a factory.
  class NoFactory final : public GroupFactory {
   public:
    CommPtr MakeGroup(const std::string&, const std::vector<int>&) override { return nullptr; }
  };
  NoFactory factory;
  return MakeParallelGroups(topology::Mesh::Create({}).value(), 0, factory);
}

}  // namespace slipway::engine::comm
