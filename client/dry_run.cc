#include "client/dry_run.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/dataset_report.h"
#include "client/exit_code.h"
#include "common/status_macros.h"
#include "engine/spec/plan.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_writer.h"

namespace slipway::client {
namespace {

constexpr absl::Duration kServerTimeout = absl::Seconds(10);

// What the server says about the job: OK, its faults, or that it is not there.
absl::Status AskServer(Connection& connection, const v1::TrainingSpec& spec) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  return connection.CallOnce(&v1::JobService::Stub::CreateJob, connection.jobs(), request, kServerTimeout).status();
}

struct SlotCounts {
  int64_t total = 0;
  int64_t free = 0;
};

absl::StatusOr<std::map<v1::DeviceKind, SlotCounts>> CountSlots(Connection& connection) {
  std::map<v1::DeviceKind, SlotCounts> slots;
  v1::ListNodesRequest request;
  request.set_page_size(1000);
  do {
    SLIPWAY_ASSIGN_OR_RETURN(
        const v1::ListNodesResponse page,
        connection.CallOnce(&v1::NodeService::Stub::ListNodes, connection.nodes(), request, kServerTimeout));
    for (const v1::Node& node : page.nodes()) {
      if (node.state() == v1::NODE_STATE_LOST) continue;
      for (const v1::Slot& slot : node.slots()) {
        SlotCounts& counts = slots[slot.kind()];
        ++counts.total;
        if (node.state() == v1::NODE_STATE_CONNECTED && slot.job_id().empty()) ++counts.free;
      }
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return slots;
}

// Why the job would wait after a submit; empty when it would not.
std::string WaitWarning(const v1::TrainingSpec& resolved, std::map<v1::DeviceKind, SlotCounts> slots) {
  const std::string& device = resolved.parallelism().device();
  const bool cuda = device == "cuda" || (device != "cpu" && slots[v1::DEVICE_KIND_CUDA].total > 0);
  const SlotCounts& counts = slots[cuda ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU];
  const char* const kind = cuda ? "GPU" : "CPU";
  const int64_t ranks = engine::spec::WorldSize(resolved);
  const std::string wants =
      absl::StrCat("the job has ", ranks, ranks == 1 ? " rank" : " ranks", " (parallelism.device ", device, ")");
  if (counts.total == 0) {
    return absl::StrCat(wants, " and no node has a ", kind, " slot: it would wait until such a node joins");
  }
  if (counts.total < ranks) {
    return absl::StrCat(wants, " and all nodes together have ", counts.total, " ", kind,
                        counts.total == 1 ? " slot" : " slots", ": it would wait until more join");
  }
  if (counts.free < ranks) {
    return absl::StrCat(wants, " and ", counts.free, " of the ", counts.total, " ", kind,
                        counts.total == 1 ? " slot is" : " slots are", " free now: it would wait for its turn");
  }
  return "";
}

// All that a dry run says, gathered and printed at once: nothing about a job that has faults but the faults.
struct Findings {
  std::string table;
  Json json;
  std::vector<std::string> notes;
};

absl::Status AddPlan(const JobFile& job, const v1::TrainingSpec& resolved, Findings* findings) {
  findings->json["plan"] = nullptr;
  if (!job.arch) {
    findings->notes.push_back(absl::StrCat("no plan: ", resolved.model().hf_path(), " is not on this machine"));
    return absl::OkStatus();
  }
  SLIPWAY_ASSIGN_OR_RETURN(const engine::spec::Plan plan, engine::spec::MakePlan(resolved, *job.arch));
  findings->table = engine::spec::PlanText(plan);
  findings->json["plan"] = engine::spec::PlanJson(plan);
  return absl::OkStatus();
}

void AddFiles(const FileReport& files, Findings* findings) {
  findings->json["files"] = Json::object();
  for (const auto& [name, value] : files.lines) {
    absl::StrAppend(&findings->table, name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), value, "\n");
    findings->json["files"][name] = value;
  }
  findings->notes.insert(findings->notes.end(), files.notes.begin(), files.notes.end());
}

// The server's faults are the job's; that it cannot be asked is none.
absl::Status AddServer(const Command& command, const JobFile& job, const v1::TrainingSpec& resolved,
                       Findings* findings) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  const absl::Status answer = AskServer(*connection, job.spec);
  const bool asked = !absl::IsUnavailable(answer) && !absl::IsDeadlineExceeded(answer);
  findings->json["server"] = {{"address", connection->address()},
                              {"accepts", asked ? Json(answer.ok()) : Json(nullptr)}};
  if (!asked) {
    findings->notes.push_back(
        absl::StrCat("not checked by a server, so neither its rules nor the slots of its nodes are "
                     "known: ",
                     answer.message()));
    return absl::OkStatus();
  }
  SLIPWAY_RETURN_IF_ERROR(WithLocations(answer, job));
  findings->notes.emplace_back("the server accepts the job");
  const auto slots = CountSlots(*connection);
  const std::string warning =
      slots.ok() ? WaitWarning(resolved, *slots)
                 : absl::StrCat("the slots of the nodes are not known: ", std::string(slots.status().message()));
  if (!warning.empty()) findings->notes.push_back(absl::StrCat("warning: ", warning));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> DryRun(const Command& command, const JobFile& job) {
  const v1::TrainingSpec resolved = engine::spec::Resolve(job.spec);
  Findings findings;
  findings.json["spec"] = Json::parse(engine::spec::SpecToJson(resolved));
  if (job.faults.empty()) SLIPWAY_RETURN_IF_ERROR(AddPlan(job, resolved, &findings));
  // The files are looked at even when the configuration has faults, so that all of them come at once.
  std::set<std::string> wrong;
  for (const engine::spec::SpecFault& fault : job.faults) wrong.insert(fault.path);
  FileReport files = InspectJobFiles(resolved, job.arch, wrong);
  AddFiles(files, &findings);
  engine::spec::AddLocations(job.locations, &files.faults);
  engine::spec::SpecFaults faults = job.faults;
  faults.insert(faults.end(), files.faults.begin(), files.faults.end());
  absl::Status status = engine::spec::FaultsToStatus(faults);
  if (status.ok()) status = AddServer(command, job, resolved, &findings);
  findings.json["notes"] = Json::array();
  for (const std::string& note : findings.notes) {
    command.Say(OneLine(note));
    findings.json["notes"].push_back(note);
  }
  SLIPWAY_RETURN_IF_ERROR(status);
  command.EmitJson(findings.json, findings.table);
  return kExitOk;
}

}  // namespace slipway::client
