#include "server/core/describe.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text.h"
#include "server/core/placement.h"

namespace slipway::server::core {
namespace {

constexpr size_t kMaxHoldersNamed = 5;

std::string KindName(v1::DeviceKind kind) { return kind == v1::DEVICE_KIND_CUDA ? "CUDA" : "CPU"; }

std::string HoldersText(const ClusterState& state, v1::DeviceKind kind) {
  std::map<std::string, int> count;
  for (const auto& [slot, holder] : HeldSlots(state)) {
    const auto node = state.nodes.find(slot.first);
    if (node == state.nodes.end()) continue;
    for (const v1::Slot& s : node->second.node.slots()) {
      if (s.index() == slot.second && s.kind() == kind) ++count[holder.job_id];
    }
  }
  std::vector<std::string> parts;
  for (const auto& [job, slots] : count) {
    if (parts.size() == kMaxHoldersNamed) {
      parts.push_back(absl::StrCat("and ", count.size() - kMaxHoldersNamed, " other jobs"));
      break;
    }
    parts.push_back(absl::StrCat(job, " (", slots, ")"));
  }
  return parts.empty() ? "" : absl::StrCat(", held by ", absl::StrJoin(parts, ", "));
}

std::string SlotsText(int count, v1::DeviceKind kind) {
  return absl::StrCat(count, " ", KindName(kind), count == 1 ? " slot" : " slots");
}

}  // namespace

Waiting WhyWaiting(const ClusterState& state, const JobEntry& entry, const Now& now) {
  if (state.draining) return {"Draining", "the server is shutting down; the job goes on when it is back"};
  if (IsHeld(entry.job)) {
    return {"Held", absl::StrCat("held; it keeps its place until `slipway jobs release ", entry.job.id(), "`")};
  }
  const bool connected = std::any_of(state.nodes.begin(), state.nodes.end(), [](const auto& node) {
    return node.second.node.state() == v1::NODE_STATE_CONNECTED;
  });
  if (!connected) return {"NoNodes", "no agent is connected"};
  const v1::DeviceKind kind = DeviceFor(state, entry.job.spec());
  const int needed = WorldSize(entry.job.spec());
  const SlotCount slots = CountSlots(state, kind);
  if (needed > slots.total) {
    return {"TooFewSlots",
            absl::StrCat("needs ", SlotsText(needed, kind), "; the nodes have ", slots.total, " in all")};
  }
  if (entry.preflight == Preflight::kRunning) {
    return {"Preflight", absl::StrCat("its files are being checked on node ", entry.preflight_node)};
  }
  if (now.monotonic < entry.not_before) {
    return {"Backoff", absl::StrCat(entry.job.state_message(), "; next attempt in ",
                                    FormatDuration(entry.not_before - now.monotonic))};
  }
  const auto position = state.waiting.find({entry.submit_sequence, entry.job.id()});
  const auto ahead = std::count_if(state.waiting.begin(), position,
                                   [&](const auto& other) { return !IsHeld(state.jobs.at(other.second).job); });
  std::string message = absl::StrCat("waiting for ", SlotsText(needed, kind), ": ", slots.free, " of ", slots.total,
                                     " free", HoldersText(state, kind));
  if (ahead > 0) absl::StrAppend(&message, "; ", ahead, ahead == 1 ? " job is" : " jobs are", " ahead in the queue");
  if (entry.preflight == Preflight::kNeeded) absl::StrAppend(&message, "; its files have not been checked yet");
  return {"WaitingForSlots", message};
}

v1::Job Describe(const ClusterState& state, const JobEntry& entry, const Now& now, bool with_history) {
  v1::Job job = entry.job;
  if (!with_history) {
    job.clear_attempts();
    job.clear_checkpoints();
  }
  if (state.waiting.contains({entry.submit_sequence, job.id()})) {
    const Waiting waiting = WhyWaiting(state, entry, now);
    job.set_state_reason(waiting.reason);
    job.set_state_message(waiting.message);
  }
  return job;
}

v1::Node DescribeNode(const ClusterState& state, const NodeEntry& entry) {
  v1::Node node = entry.node;
  const auto held = HeldSlots(state);
  for (v1::Slot& slot : *node.mutable_slots()) {
    const auto it = held.find({node.id(), slot.index()});
    if (it == held.end()) continue;
    slot.set_job_id(it->second.job_id);
    slot.set_epoch(it->second.epoch);
    slot.set_rank(it->second.rank);
  }
  return node;
}

}  // namespace slipway::server::core
