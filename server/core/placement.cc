#include "server/core/placement.h"

#include <algorithm>

namespace slipway::server::core {
namespace {

struct FreeNode {
  std::string id;
  std::vector<int> slots;  // ascending
};

std::vector<FreeNode> FreeNodes(const ClusterState& state, v1::DeviceKind kind) {
  const auto held = HeldSlots(state);
  std::vector<FreeNode> nodes;
  for (const auto& [id, entry] : state.nodes) {
    // What an agent still runs is known only once it has said so.
    if (entry.node.state() != v1::NODE_STATE_CONNECTED || !entry.reported || entry.stale) continue;
    FreeNode free;
    free.id = id;
    for (const v1::Slot& slot : entry.node.slots()) {
      if (slot.kind() == kind && !held.contains({id, slot.index()})) free.slots.push_back(slot.index());
    }
    std::sort(free.slots.begin(), free.slots.end());
    if (!free.slots.empty()) nodes.push_back(std::move(free));
  }
  return nodes;
}

// Moves `count` slots of `node` to the next ranks.
void Take(FreeNode& node, size_t count, std::vector<v1::RankPlacement>& placements) {
  for (size_t i = 0; i < count; ++i) {
    v1::RankPlacement& placement = placements.emplace_back();
    placement.set_rank(static_cast<int>(placements.size()) - 1);
    placement.set_node_id(node.id);
    placement.set_slot(node.slots[i]);
  }
  node.slots.erase(node.slots.begin(), node.slots.begin() + static_cast<ptrdiff_t>(count));
}

std::optional<std::vector<v1::RankPlacement>> PlaceAgain(const std::vector<FreeNode>& nodes, size_t world,
                                                         const v1::Attempt& previous) {
  if (static_cast<size_t>(previous.placements_size()) != world) return std::nullopt;
  for (const v1::RankPlacement& placement : previous.placements()) {
    const auto node =
        std::find_if(nodes.begin(), nodes.end(), [&](const FreeNode& n) { return n.id == placement.node_id(); });
    if (node == nodes.end()) return std::nullopt;
    if (!std::binary_search(node->slots.begin(), node->slots.end(), placement.slot())) return std::nullopt;
  }
  return std::vector<v1::RankPlacement>(previous.placements().begin(), previous.placements().end());
}

}  // namespace

std::map<std::pair<std::string, int>, SlotHolder> HeldSlots(const ClusterState& state) {
  std::map<std::pair<std::string, int>, SlotHolder> held;
  for (const std::string& id : state.active) {
    const v1::Attempt* attempt = LiveAttempt(state.jobs.at(id));
    if (attempt == nullptr) continue;
    for (const v1::RankPlacement& placement : attempt->placements()) {
      held[{placement.node_id(), placement.slot()}] = {id, attempt->epoch(), placement.rank()};
    }
  }
  return held;
}

v1::DeviceKind DeviceFor(const ClusterState& state, const v1::TrainingSpec& spec) {
  const std::string& device = spec.parallelism().device();
  if (device == "cpu") return v1::DEVICE_KIND_CPU;
  if (device == "cuda") return v1::DEVICE_KIND_CUDA;
  return CountSlots(state, v1::DEVICE_KIND_CUDA).total > 0 ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU;
}

SlotCount CountSlots(const ClusterState& state, v1::DeviceKind kind) {
  SlotCount count;
  const auto held = HeldSlots(state);
  for (const auto& [id, entry] : state.nodes) {
    if (entry.node.state() == v1::NODE_STATE_LOST) continue;
    for (const v1::Slot& slot : entry.node.slots()) {
      if (slot.kind() != kind) continue;
      ++count.total;
      if (entry.node.state() == v1::NODE_STATE_CONNECTED && !held.contains({id, slot.index()})) ++count.free;
    }
  }
  return count;
}

std::optional<std::vector<v1::RankPlacement>> Place(const ClusterState& state, const v1::TrainingSpec& spec,
                                                    const v1::Attempt* previous) {
  const size_t world = static_cast<size_t>(WorldSize(spec));
  std::vector<FreeNode> nodes = FreeNodes(state, DeviceFor(state, spec));
  size_t free = 0;
  for (const FreeNode& node : nodes) free += node.slots.size();
  if (free < world) return std::nullopt;
  if (previous != nullptr) {
    if (auto again = PlaceAgain(nodes, world, *previous)) return again;
  }

  std::vector<v1::RankPlacement> placements;
  placements.reserve(world);
  FreeNode* fits = nullptr;  // the smallest node that holds all of it
  for (FreeNode& node : nodes) {
    if (node.slots.size() >= world && (fits == nullptr || node.slots.size() < fits->slots.size())) fits = &node;
  }
  if (fits != nullptr) {
    Take(*fits, world, placements);
    return placements;
  }
  // Over several nodes, the largest first: whole tensor-parallel groups (consecutive ranks), then whatever is left.
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const FreeNode& a, const FreeNode& b) { return a.slots.size() > b.slots.size(); });
  const size_t tensor = static_cast<size_t>(std::max(1, spec.parallelism().tensor_model_parallel_size()));
  for (FreeNode& node : nodes) {
    const size_t groups = std::min(node.slots.size(), world - placements.size()) / tensor;
    Take(node, groups * tensor, placements);
  }
  for (FreeNode& node : nodes) Take(node, std::min(node.slots.size(), world - placements.size()), placements);
  return placements;
}

}  // namespace slipway::server::core
