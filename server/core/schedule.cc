#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/timestamp.h"
#include "server/core/placement.h"
#include "server/core/transition.h"

namespace slipway::server::core {
namespace {

// What a node that has just connected still runs is not known.
bool IsUsable(const NodeEntry& entry) { return entry.node.state() == v1::NODE_STATE_CONNECTED && entry.reported; }

// A node that can look at the job's files: one with slots of its kind where there is one. A node does one at a time.
std::string NodeForPreflight(const ClusterState& state, v1::DeviceKind kind, const std::set<std::string>& busy) {
  std::string any;
  for (const auto& [id, entry] : state.nodes) {
    if (!IsUsable(entry) || busy.contains(id)) continue;
    const auto& slots = entry.node.slots();
    if (std::any_of(slots.begin(), slots.end(), [&](const v1::Slot& slot) { return slot.kind() == kind; })) return id;
    if (any.empty()) any = id;
  }
  return any;
}

}  // namespace

void Transition::Schedule() {
  if (state_.draining || state_.waiting.empty()) return;
  std::set<std::string> busy;
  int connected = 0;
  for (const auto& [id, entry] : state_.nodes) connected += IsUsable(entry) ? 1 : 0;
  if (connected == 0) return;
  for (const std::string& id : state_.active) {
    const JobEntry& entry = state_.jobs.at(id);
    if (entry.preflight == Preflight::kRunning) busy.insert(entry.preflight_node);
  }

  std::set<v1::DeviceKind> blocked;  // an older job has the next slots of this kind
  const auto waiting = state_.waiting;
  for (const auto& [sequence, id] : waiting) {
    JobEntry& entry = state_.jobs.at(id);
    if (IsHeld(entry.job)) continue;  // and holds nobody up
    const v1::DeviceKind kind = DeviceFor(state_, entry.job.spec());
    if (entry.preflight == Preflight::kNeeded && busy.size() < static_cast<size_t>(connected)) {
      const std::string node = NodeForPreflight(state_, kind, busy);
      busy.insert(node);
      entry.preflight = Preflight::kRunning;
      entry.preflight_node = node;
      entry.preflight_epoch = entry.next_epoch;
      entry.preflight_deadline = now_.monotonic + state_.options.preflight_timeout;
      Reindex(entry);
      Touch(node);
    }
    const bool all_blocked = blocked.contains(v1::DEVICE_KIND_CPU) && blocked.contains(v1::DEVICE_KIND_CUDA);
    if (all_blocked && busy.size() >= static_cast<size_t>(connected)) break;
    if (blocked.contains(kind)) continue;
    const SlotCount slots = CountSlots(state_, kind);
    if (WorldSize(entry.job.spec()) > slots.total) continue;  // holds nobody up: it cannot run on these nodes
    if (entry.preflight != Preflight::kDone || now_.monotonic < entry.not_before) {
      blocked.insert(kind);
      continue;
    }
    const v1::Attempt* previous =
        entry.job.attempts_size() > 0 ? &entry.job.attempts(entry.job.attempts_size() - 1) : nullptr;
    if (previous != nullptr && previous->end_cause().cause_class() == v1::CAUSE_CLASS_GPU_HARDWARE) previous = nullptr;
    if (const auto placements = Place(state_, entry.job.spec(), previous)) {
      StartAttempt(entry, *placements);
      continue;
    }
    blocked.insert(kind);
    if (entry.job.state() != v1::JOB_STATE_RECOVERING) continue;
    SetState(entry, v1::JOB_STATE_QUEUED, "WaitingForSlots", "its slots are gone; waiting for others");
    Emit(entry, "Requeued", entry.job.state_message());
  }
}

}  // namespace slipway::server::core
