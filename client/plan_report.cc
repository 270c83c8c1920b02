#include "client/plan_report.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/format.h"
#include "common/text.h"

namespace slipway::client {
namespace {

using engine::spec::Plan;
using engine::spec::PlannedGroups;
using engine::topology::PipelineStage;

constexpr size_t kMostRanksShown = 8;  // of a group

std::string Bytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

std::string RanksText(const std::vector<int>& ranks) {
  const size_t shown = std::min(ranks.size(), kMostRanksShown);
  return absl::StrCat("[", absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), " "),
                      shown < ranks.size() ? " …" : "", "]");
}

std::string GroupTable(const Plan& plan) {
  Table table({"GROUPS", "COUNT", "SIZE", "NODES", "RANKS"});
  for (const PlannedGroups& groups : plan.groups) {
    std::vector<std::string> examples;
    for (const std::vector<int>& ranks : groups.examples) examples.push_back(RanksText(ranks));
    if (static_cast<int64_t>(examples.size()) < groups.count) examples.push_back("…");
    table.Add({std::string(GroupKindName(groups.kind)), Grouped(groups.count), absl::StrCat(groups.size),
               absl::StrCat(groups.nodes), absl::StrJoin(examples, " ")});
  }
  return plan.groups.empty() ? "" : absl::StrCat("\n", table.Text());
}

std::string StageText(const PipelineStage& stage) {
  std::vector<std::string> parts;
  if (stage.has_embedding) parts.push_back("embedding");
  if (stage.num_layers > 0) {
    parts.push_back(absl::StrCat("layers ", stage.first_layer, "–", stage.first_layer + stage.num_layers - 1));
  }
  if (stage.has_head) parts.push_back("head");
  return parts.empty() ? "nothing" : absl::StrJoin(parts, ", ");
}

std::string MemoryTable(const Plan& plan) {
  Table table({"STAGE", "PARAMETERS", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS", "LOGITS", "TOTAL", "HOLDS"});
  for (size_t rank = 0; rank < plan.memory_by_stage.size(); ++rank) {
    const auto& memory = plan.memory_by_stage[rank];
    std::vector<std::string> chunks;
    for (const PipelineStage& stage : plan.partition.OfRank(static_cast<int>(rank))) chunks.push_back(StageText(stage));
    table.Add({absl::StrCat(rank), Grouped(memory.parameters), Bytes(memory.weights), Bytes(memory.gradients),
               Bytes(memory.optimizer), Bytes(memory.activations), Bytes(memory.logits), Bytes(memory.Total()),
               absl::StrJoin(chunks, " | ")});
  }
  return absl::StrCat("\n", table.Text());
}

std::string TrafficTable(const Plan& plan) {
  Table table({"TRAFFIC OF A STEP", "GROUP", "SIZE", "OF", "OPERATIONS", "SENT BY A RANK", "BETWEEN NODES"});
  double sent = 0, between = 0;
  for (const auto& traffic : plan.traffic) {
    sent += traffic.bytes;
    between += traffic.node_bytes;
    table.Add({traffic.operation, std::string(GroupKindName(traffic.group)), absl::StrCat(traffic.group_size),
               traffic.what, Grouped(traffic.operations), Bytes(traffic.bytes), Bytes(traffic.node_bytes)});
  }
  if (plan.traffic.empty()) return "";
  table.Add({"sum", "", "", "", "", Bytes(sent), Bytes(between)});
  return absl::StrCat("\n", table.Text());
}

}  // namespace

std::string PlanTables(const Plan& plan) {
  return absl::StrCat(engine::spec::PlanText(plan), GroupTable(plan), MemoryTable(plan), TrafficTable(plan));
}

}  // namespace slipway::client
