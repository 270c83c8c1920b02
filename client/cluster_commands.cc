// checkpoints list, nodes list, version.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/job_text.h"
#include "common/status_macros.h"
#include "common/text.h"

namespace slipway::client {
namespace {

absl::StatusOr<int> ListCheckpoints(const Command& command, const std::string& job) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  v1::ListCheckpointsResponse all;
  do {
    SLIPWAY_ASSIGN_OR_RETURN(
        v1::ListCheckpointsResponse page,
        connection->Call(&v1::CheckpointService::Stub::ListCheckpoints, connection->checkpoints(), request));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  Table table({"STEP", "EPOCH", "SIZE", "AGE", "PATH"});
  for (const v1::Checkpoint& checkpoint : all.checkpoints()) {
    table.Add({absl::StrCat(checkpoint.step()), absl::StrCat(checkpoint.epoch()), FormatBytes(checkpoint.size_bytes()),
               AgeText(checkpoint.commit_time(), absl::Now()), OneLine(checkpoint.path())});
  }
  const std::string names = absl::StrJoin(
      all.checkpoints(), "",
      [](std::string* out, const v1::Checkpoint& checkpoint) { absl::StrAppend(out, checkpoint.path(), "\n"); });
  if (all.checkpoints().empty() && command.is_table()) {
    command.Say("no checkpoints");
    return kExitOk;
  }
  command.Emit(all, table.Text(), names);
  return kExitOk;
}

std::string NodeStateText(v1::NodeState state) {
  switch (state) {
    case v1::NODE_STATE_CONNECTED:
      return "CONNECTED";
    case v1::NODE_STATE_UNREACHABLE:
      return "UNREACHABLE";
    case v1::NODE_STATE_LOST:
      return "LOST";
    default:
      return "UNKNOWN";
  }
}

absl::StatusOr<int> ListNodes(const Command& command) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  v1::ListNodesRequest request;
  request.set_page_size(1000);
  v1::ListNodesResponse all;
  do {
    SLIPWAY_ASSIGN_OR_RETURN(v1::ListNodesResponse page,
                             connection->Call(&v1::NodeService::Stub::ListNodes, connection->nodes(), request));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  Table table({"NODE", "HOST", "STATE", "HEARTBEAT", "SLOT", "JOB"});
  for (const v1::Node& node : all.nodes()) {
    const std::string age = AgeText(node.last_heartbeat_time(), absl::Now());
    if (node.slots().empty())
      table.Add({node.id(), OneLine(node.hostname()), NodeStateText(node.state()), age, "-", "-"});
    for (int i = 0; i < node.slots_size(); ++i) {
      const v1::Slot& slot = node.slots(i);
      const std::string holder = slot.job_id().empty() ? "-" : absl::StrCat(slot.job_id(), " rank ", slot.rank());
      if (i == 0) {
        table.Add(
            {node.id(), OneLine(node.hostname()), NodeStateText(node.state()), age, OneLine(SlotText(slot)), holder});
      } else {
        table.Add({"", "", "", "", OneLine(SlotText(slot)), holder});
      }
    }
  }
  const std::string names = absl::StrJoin(
      all.nodes(), "", [](std::string* out, const v1::Node& node) { absl::StrAppend(out, node.id(), "\n"); });
  if (all.nodes().empty() && command.is_table()) {
    command.Say("no nodes");
    return kExitOk;
  }
  command.Emit(all, table.Text(), names);
  return kExitOk;
}

// Answers also when there is no server: which program this is does not depend on it.
absl::StatusOr<int> Version(const Command& command) {
  constexpr absl::Duration kTimeout = absl::Seconds(3);
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  const auto info = connection->CallOnce(&v1::AdminService::Stub::GetServerInfo, connection->admin(),
                                         v1::GetServerInfoRequest(), kTimeout);
  Json json = {{"client", {{"version", SLIPWAY_VERSION}}},
               {"server", {{"address", connection->address()}, {"reachable", info.ok()}}}};
  std::string text = absl::StrCat("client ", SLIPWAY_VERSION, "\n");
  if (info.ok()) {
    json["server"].update(ToJson(*info));
    absl::StrAppend(&text, "server ", info->version(), " at ", connection->address(), ", up since ",
                    TimeText(info->start_time()), "\n");
  } else {
    absl::StrAppend(&text, "server: not reachable\n");
  }
  command.EmitJson(json, text);
  if (!info.ok()) command.Say(std::string(info.status().message()));
  if (info.ok() && info->version() != SLIPWAY_VERSION)
    command.Say("warning: client and server are of different versions");
  return kExitOk;
}

}  // namespace

void AddClusterCommands(CLI::App* app, Command* command) {
  CLI::App* checkpoints = app->add_subcommand("checkpoints", "Checkpoints of jobs");
  checkpoints->require_subcommand(1);
  const auto job = std::make_shared<std::string>();
  CLI::App* list_checkpoints = checkpoints->add_subcommand("list", "Checkpoints of a job, oldest first");
  list_checkpoints->add_option("job", *job, "Id or name")->required();
  command->Run(list_checkpoints, [=] { return ListCheckpoints(*command, *job); });

  CLI::App* nodes = app->add_subcommand("nodes", "Machines and their slots");
  nodes->require_subcommand(1);
  CLI::App* list_nodes = nodes->add_subcommand("list", "Nodes, their slots and who holds them");
  command->Run(list_nodes, [=] { return ListNodes(*command); });

  CLI::App* version = app->add_subcommand("version", "Versions of this program and of the server");
  command->Run(
      version, [=] { return Version(*command); }, Outputs::kNoNames);
}

}  // namespace slipway::client
