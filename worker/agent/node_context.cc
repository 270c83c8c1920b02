#include "worker/agent/node_context.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

extern char** environ;

namespace slipway::worker::agent {
namespace {

namespace fs = std::filesystem;

const slipway::v1::Slot* SlotOf(const NodeContext& node, const slipway::v1::DesiredAssignment& assignment, int rank) {
  for (const slipway::v1::RankPlacement& placement : assignment.ranks()) {
    if (placement.rank() != rank) continue;
    for (const slipway::v1::Slot& slot : node.slots) {
      if (slot.index() == placement.slot()) return &slot;
    }
  }
  return nullptr;
}

bool IsBelow(const fs::path& path, const fs::path& root) {
  const auto [end_of_root, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return end_of_root == root.end();
}

// Follows links as far as the path exists; "" when that fails (a loop, no permission).
fs::path Canonical(const std::string& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path, error);
  if (error) return {};
  return result.has_filename() ? result : result.parent_path();  // no trailing slash
}

}  // namespace

absl::Status CheckAllowed(const NodeContext& node, const std::string& path) {
  if (path.empty() || path.front() != '/') {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not an absolute path"));
  }
  if (node.allowed_roots.empty()) return absl::OkStatus();
  const fs::path canonical = Canonical(path);
  for (const std::string& root : node.allowed_roots) {
    const fs::path canonical_root = Canonical(root);
    if (!canonical.empty() && !canonical_root.empty() && IsBelow(canonical, canonical_root)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(path, " lies below none of the roots that node ", node.node_id,
                                                  " allows: ", absl::StrJoin(node.allowed_roots, ", "),
                                                  " (slipwayd --allow-root, or slipway-agent --root, adds one)"));
}

absl::StatusOr<slipway::worker::v1::WorkerLaunch> MakeLaunch(const NodeContext& node,
                                                             const slipway::v1::DesiredAssignment& assignment,
                                                             int rank) {
  slipway::worker::v1::WorkerLaunch launch;
  launch.set_job_id(assignment.job_id());
  launch.set_epoch(assignment.epoch());
  launch.set_rank(std::max(rank, 0));
  launch.set_world_size(assignment.world_size());
  *launch.mutable_spec() = assignment.spec();
  launch.set_socket_path(node.socket_path);
  launch.set_nonce(assignment.nonce());
  launch.set_output_dir(assignment.output_dir());
  launch.set_checkpoint_dir(assignment.checkpoint_dir());
  *launch.mutable_lineage() = assignment.lineage();
  launch.set_lease_seconds(absl::ToDoubleSeconds(node.worker_lease));
  for (const std::string& root : node.allowed_roots) launch.add_allowed_roots(root);
  const slipway::v1::Slot* slot = SlotOf(node, assignment, rank);
  if (rank < 0) slot = node.slots.empty() ? nullptr : &node.slots.front();  // the preflight only looks
  if (slot == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is placed on a slot that node ", node.node_id,
                                                   " does not have; it has ", node.slots.size(), " slots"));
  }
  // A worker sees only its own GPU.
  launch.set_device(slot->kind() == slipway::v1::DEVICE_KIND_CUDA && rank >= 0 ? "cuda:0" : "cpu");
  launch.set_threads(std::max(slot->threads(), 1));
  return launch;
}

std::vector<std::string> MakeEnvironment(const NodeContext& node, const slipway::v1::DesiredAssignment& assignment,
                                         int rank) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const auto& [name, value] : assignment.spec().env()) variables[name] = value;
  const slipway::v1::Slot* slot = SlotOf(node, assignment, rank);
  const int threads = slot == nullptr ? 1 : std::max(slot->threads(), 1);
  variables["OMP_NUM_THREADS"] = absl::StrCat(threads);
  variables["MKL_NUM_THREADS"] = absl::StrCat(threads);
  // By UUID: numbers would depend on CUDA_DEVICE_ORDER and on what this process itself may see.
  variables["CUDA_VISIBLE_DEVICES"] =
      slot != nullptr && slot->kind() == slipway::v1::DEVICE_KIND_CUDA ? slot->device_uuid() : "";
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

}  // namespace slipway::worker::agent
