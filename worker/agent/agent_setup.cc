// How an agent comes up: lock, name, slots, binaries, left-overs.
#include <limits.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "worker/agent/agent.h"
#include "worker/agent/gpu_inventory.h"
#include "worker/agent/rendezvous.h"
#include "worker/link/agent_exit.h"

namespace slipway::worker::agent {
namespace {

constexpr absl::Duration kProbeDeadline = absl::Seconds(20);

std::string Hostname() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string OwnDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

// The host's name for people, and a random part because names repeat.
std::string NewNodeId() {
  std::string id;
  for (const char c : Hostname()) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-') id.push_back(c);
  }
  return absl::StrFormat("%s-%06x", id.substr(0, 40), std::random_device{}() & 0xffffff);
}

absl::StatusOr<std::string> LoadNodeId(FileSystem& files, const std::string& state_dir) {
  const std::string path = JoinPath(state_dir, "node-id");
  absl::StatusOr<std::string> known = files.ReadFile(path);
  if (known.ok() && !absl::StripAsciiWhitespace(*known).empty()) return std::string(absl::StripAsciiWhitespace(*known));
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  const std::string id = NewNodeId();
  SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(path, id + "\n"));
  return id;
}

// Variables for tests that bring their own binaries.
std::string BinaryFrom(const char* variable, const std::string& name) {
  const char* path = std::getenv(variable);
  return path != nullptr ? path : JoinPath(OwnDirectory(), name);
}

// Marks an error that comes again at each start, until somebody changes the machine or the command line.
constexpr char kUnfitPayload[] = "slipway-agent/unfit";

absl::Status Unfit(absl::Status status) {
  status.SetPayload(kUnfitPayload, absl::Cord());
  return status;
}

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return link::kAgentExitOk;
  if (status.GetPayload(kUnfitPayload).has_value()) return link::kAgentExitUnfit;
  return absl::IsFailedPrecondition(status) ? link::kAgentExitLocked : link::kAgentExitError;
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(const AgentOptions& options) {
  std::unique_ptr<Agent> agent(new Agent(options));
  SLIPWAY_RETURN_IF_ERROR(agent->SetUp());
  return agent;
}

Agent::Agent(const AgentOptions& options) : options_(options) {}

Agent::~Agent() {
  metrics_.reset();
  logs_.reset();
  session_.reset();
}

absl::Status Agent::SetUp() {
  SLIPWAY_RETURN_IF_ERROR(files_.MakeDirectories(options_.state_dir));
  ::chmod(options_.state_dir.c_str(), 0700);
  SLIPWAY_ASSIGN_OR_RETURN(lock_, files_.Lock(JoinPath(options_.state_dir, "agent.lock")));
  if (lock_->left_over().has_value()) {
    spdlog::warn("an earlier agent (pid \"{}\") ended without releasing {}; taking over", *lock_->left_over(),
                 options_.state_dir);
  }
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sigset_t handled;
  ::sigemptyset(&handled);
  ::sigaddset(&handled, SIGTERM);
  ::sigaddset(&handled, SIGINT);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!wake_.valid() || !signals_.valid()) return ErrnoToStatus(errno, "making the loop's descriptors");

  node_.node_id = options_.node_id;
  if (node_.node_id.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(node_.node_id, LoadNodeId(files_, options_.state_dir));
  }
  node_.state_dir = options_.state_dir;
  node_.socket_path = JoinPath(options_.state_dir, "agent.sock");
  node_.allowed_roots = options_.roots;
  node_.preflight_timeout = options_.preflight_timeout;
  node_.clock = &clock_;
  node_.files = &files_;
  SLIPWAY_RETURN_IF_ERROR(FindBinaries());
  SLIPWAY_RETURN_IF_ERROR(FindSlots());
  node_.rendezvous_ip = options_.local ? "127.0.0.1" : options_.rendezvous_ip;
  FindRendezvousAddress();
  lease_.emplace(JoinPath(options_.state_dir, "lease"), options_.orphan_timeout, clock_, files_);
  AdoptLeftOvers();

  SLIPWAY_ASSIGN_OR_RETURN(hub_, WorkerHub::Listen(
                                     node_.socket_path, clock_,
                                     [this](const RankKey& key, const slipway::worker::v1::WorkerReport& report) {
                                       return TakeReport(key, report);
                                     },
                                     [this](const RankKey& key) {
                                       const auto it = attempts_.find(key.attempt);
                                       return it == attempts_.end() ? WorkerHub::Control{.stop_requested = true}
                                                                    : it->second->ControlOf();
                                     }));
  if (!options_.metrics.empty()) {
    SLIPWAY_ASSIGN_OR_RETURN(metrics_, MetricsEndpoint::Start(options_.metrics, figures_, clock_));
  }
  session_ = std::make_unique<Session>(
      options_.coordinator,
      Session::Callbacks{.hello = [this] { return MakeHello(); },
                         .message = [this](slipway::v1::CoordinatorMessage message) { Post(std::move(message)); },
                         .disconnected = [this] { Post(Disconnected{}); }});
  logs_ = std::make_unique<LogService>(
      options_.state_dir, [this](const slipway::v1::LogChunk& chunk) { return session_->OfferLogChunk(chunk); },
      [this](const std::string& job_id, int64_t epoch, int rank) { return MayPrint(job_id, epoch, rank); });
  return absl::OkStatus();
}

void Agent::FindRendezvousAddress() {
  if (!node_.rendezvous_ip.empty()) return;
  absl::StatusOr<std::string> address = AddressFacing(options_.coordinator);
  if (address.ok()) {
    node_.rendezvous_ip = *std::move(address);
  } else {  // no name service yet: asked again once the coordinator has answered
    spdlog::warn("no address for ranks to meet on yet: {}", address.status().ToString());
  }
}

absl::Status Agent::FindBinaries() {
  node_.shim_binary = BinaryFrom("SLIPWAY_SHIM", "slipway-shim");
  node_.worker_binary = BinaryFrom("SLIPWAY_WORKER", "slipway-worker");
  for (const std::string& path : {node_.shim_binary, node_.worker_binary}) {
    if (::access(path.c_str(), X_OK) != 0) return Unfit(ErrnoToStatus(errno, absl::StrCat("cannot run ", path)));
  }
  return absl::OkStatus();
}

absl::Status Agent::FindSlots() {
  const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  if (options_.cpu_slots == 0) {
    absl::StatusOr<std::vector<slipway::v1::Slot>> gpus =
        ProbeGpus({"/proc/self/exe", std::string(kProbeFlag)}, kProbeDeadline);
    if (gpus.ok()) node_.slots = KeepVisible(*std::move(gpus), std::getenv("CUDA_VISIBLE_DEVICES"));
    if (options_.gpus) {
      SLIPWAY_RETURN_IF_ERROR(gpus.status());
      if (node_.slots.empty()) return Unfit(absl::NotFoundError("--gpus: this machine shows no NVIDIA GPU"));
    } else if (!gpus.ok()) {
      spdlog::warn("offering a CPU slot: {}", gpus.status().ToString());
    }
  }
  if (node_.slots.empty()) {
    for (int i = 0; i < std::max(options_.cpu_slots, 1); ++i) {
      slipway::v1::Slot slot;
      slot.set_index(i);
      slot.set_kind(slipway::v1::DEVICE_KIND_CPU);
      slot.set_device_name("CPU");
      node_.slots.push_back(slot);
    }
  }
  const int count = static_cast<int>(node_.slots.size());
  const int threads = options_.threads_per_slot > 0 ? options_.threads_per_slot : std::max(cores / count, 1);
  for (slipway::v1::Slot& slot : node_.slots) slot.set_threads(threads);
  figures_.slots = count;
  return absl::OkStatus();
}

void Agent::AdoptLeftOvers() {
  absl::StatusOr<std::vector<AttemptKey>> keys = ListAttempts(files_, options_.state_dir);
  if (!keys.ok()) {
    spdlog::error("looking for workers of an earlier agent: {}", keys.status().ToString());
    return;
  }
  for (const AttemptKey& key : *keys) attempts_[key] = std::make_unique<Attempt>(key, node_);
}

slipway::v1::AgentHello Agent::MakeHello() {
  slipway::v1::AgentHello hello;
  hello.set_node_id(node_.node_id);
  hello.set_hostname(Hostname());
  for (const slipway::v1::Slot& slot : node_.slots) *hello.add_slots() = slot;
  hello.set_version(SLIPWAY_VERSION);
  for (const std::string& root : node_.allowed_roots) hello.add_allowed_roots(root);
  // Kept in a file: it must rise over restarts of the agent.
  const std::string path = JoinPath(options_.state_dir, "session");
  int64_t number = 0;
  if (!absl::SimpleAtoi(files_.ReadFile(path).value_or("0"), &number)) number = 0;
  // A lost file must not take the number back.
  number = std::max(number, absl::ToUnixSeconds(clock_.WallNow())) + 1;
  if (const absl::Status status = files_.WriteFileAtomically(path, absl::StrCat(number)); !status.ok()) {
    spdlog::warn("{}", status.ToString());
  }
  hello.set_session_number(number);
  return hello;
}

}  // namespace slipway::worker::agent
