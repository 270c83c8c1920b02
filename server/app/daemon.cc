#include "server/app/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "server/http/cluster_metrics.h"
#include "spdlog/spdlog.h"

namespace slipway::server::app {
namespace {

constexpr char kLockFile[] = "slipwayd.lock";
constexpr char kAddressFile[] = "slipwayd.json";
constexpr char kAgentDirectory[] = "agent";
constexpr absl::Duration kKeepMetrics = absl::Hours(24 * 30);
constexpr absl::Duration kRpcDeadline = absl::Seconds(5);
constexpr absl::Duration kAgentGrace = absl::Seconds(20);

// Runs `read` on the coordinator's thread and waits for it; false when that takes too long.
bool ReadState(rpc::Coordinator& coordinator, std::function<void(const core::ClusterState&)> read) {
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> future = done->get_future();
  coordinator.Run([done, read = std::move(read)](rpc::Coordinator::Turn& turn) -> rpc::Coordinator::Completion {
    read(turn.state());
    return [done](const absl::Status&) { done->set_value(); };
  });
  return future.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Flags& flags, const std::string& binary_dir) {
  std::unique_ptr<Daemon> daemon(new Daemon(flags));
  SLIPWAY_RETURN_IF_ERROR(daemon->Open());
  SLIPWAY_RETURN_IF_ERROR(daemon->Serve());
  SLIPWAY_RETURN_IF_ERROR(daemon->WriteAddresses());
  if (flags.local.has_value()) SLIPWAY_RETURN_IF_ERROR(daemon->StartAgent(binary_dir));
  return daemon;
}

Daemon::~Daemon() {
  if (rpc_ != nullptr) rpc_->Shutdown(absl::Seconds(1));
  if (http_ != nullptr) http_->Stop();
  if (coordinator_ != nullptr) coordinator_->Stop();
}

absl::Status Daemon::Open() {
  PosixFileSystem files;
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(flags_.data_dir));
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files.Lock(JoinPath(flags_.data_dir, kLockFile));
  if (!lock.ok()) {
    return Annotate(lock.status(), absl::StrCat("another slipwayd has the data directory ", flags_.data_dir));
  }
  lock_ = *std::move(lock);
  if (lock_->left_over().has_value()) {
    spdlog::warn("an earlier slipwayd ended without cleaning up (lock file of process {}); going on",
                 lock_->left_over()->empty() ? "unknown" : lock_->left_over()->substr(0, 20));
  }
  SLIPWAY_ASSIGN_OR_RETURN(store_, store::Store::Open(JoinPath(flags_.data_dir, "store")));
  SLIPWAY_ASSIGN_OR_RETURN(metrics_,
                           store::MetricStore::Open(JoinPath(flags_.data_dir, "metrics"),
                                                    {.keep = kKeepMetrics, .max_bytes = flags_.metrics_mib << 20}));
  return absl::OkStatus();
}

absl::Status Daemon::Serve() {
  rpc::CoordinatorOptions coordinator;
  coordinator.core.agent_lease = absl::Seconds(flags_.agent_lease_seconds);
  coordinator.data_dir = flags_.data_dir;
  coordinator_ = std::make_unique<rpc::Coordinator>(coordinator, store_.get(), metrics_.get(), &clock_, &telemetry_);
  rpc::RpcServerOptions options;
  options.version = SLIPWAY_VERSION;
  options.submit = {.allowed_roots = flags_.allow_roots, .output_root = flags_.output_root};
  options.agents.agent_lease = absl::Seconds(flags_.agent_lease_seconds);
  options.agents.worker_lease = absl::Seconds(flags_.worker_lease_seconds);
  rpc_ = std::make_unique<rpc::RpcServer>(options, coordinator_.get(), &clock_, &telemetry_);
  SLIPWAY_RETURN_IF_ERROR(coordinator_->Start(rpc_->sink()));
  http_ = std::make_unique<http::HttpServer>(
      http::HttpServerOptions{.listen = flags_.http,
                              .metrics = [this] { return Metrics(); },
                              .unready_reason = [this] { return coordinator_->unready_reason(); }});
  SLIPWAY_RETURN_IF_ERROR(http_->Start());
  rpc_->set_http_address(http_->address());
  return StartRpc();
}

absl::Status Daemon::StartRpc() {
  // An agent that outlived its coordinator knows one address: with a free choice of the port, that one is taken again.
  const bool any_port = absl::EndsWith(flags_.listen, ":0");
  if (flags_.local.has_value() && any_port) {
    const std::optional<RunningAgent> agent = FindRunningAgent(JoinPath(flags_.data_dir, kAgentDirectory));
    if (agent.has_value() && rpc_->Start(agent->coordinator).ok()) return absl::OkStatus();
  }
  return rpc_->Start(flags_.listen);
}

absl::Status Daemon::WriteAddresses() {
  const nlohmann::json addresses = {{"pid", ::getpid()},
                                    {"version", SLIPWAY_VERSION},
                                    {"grpc_address", rpc_->address()},
                                    {"http_address", http_->address()}};
  return PosixFileSystem().WriteFileAtomically(JoinPath(flags_.data_dir, kAddressFile),
                                               absl::StrCat(addresses.dump(2), "\n"));
}

absl::Status Daemon::StartAgent(const std::string& binary_dir) {
  LocalAgentOptions options;
  options.binary = JoinPath(binary_dir, "slipway-agent");
  options.state_dir = JoinPath(flags_.data_dir, kAgentDirectory);
  options.coordinator = rpc_->address();
  options.node = *flags_.local;
  options.allow_roots = flags_.allow_roots;
  options.log_level = flags_.log_level;
  agent_ = std::make_unique<LocalAgent>(options, &clock_);
  return agent_->Start();
}

std::vector<prometheus::MetricFamily> Daemon::Metrics() {
  std::vector<prometheus::MetricFamily> families = telemetry_.registry().Collect();
  auto cluster = std::make_shared<std::vector<prometheus::MetricFamily>>();
  const bool read = ReadState(*coordinator_, [cluster, now = clock_.WallNow()](const core::ClusterState& state) {
    *cluster = http::ClusterMetrics(state, now);
  });
  if (!read) return families;
  std::move(cluster->begin(), cluster->end(), std::back_inserter(families));
  return families;
}

absl::Status Daemon::Supervise() {
  rpc_->SetReady(coordinator_->ready());
  return agent_ == nullptr ? absl::OkStatus() : agent_->Supervise();
}

void Daemon::DrainJobs(const std::function<int()>& hurry) {
  coordinator_->Drain(false);
  bool hurried = false;
  while (hurry() < 2) {
    if (!hurried && hurry() > 0) {
      hurried = true;
      coordinator_->Drain(true);
    }
    auto live = std::make_shared<int>(0);
    const bool read = ReadState(*coordinator_, [live](const core::ClusterState& state) {
      *live = static_cast<int>(std::count_if(state.active.begin(), state.active.end(), [&](const std::string& id) {
        return core::LiveAttempt(state.jobs.at(id)) != nullptr;
      }));
    });
    if (read && *live == 0) return;
    if (!agent_->Supervise().ok()) return;  // an agent that dies now must come back to end its workers
    absl::SleepFor(absl::Milliseconds(50));
  }
}

void Daemon::Stop(const std::function<int()>& hurry) {
  rpc_->SetReady(false);
  if (agent_ != nullptr) {
    DrainJobs(hurry);
    agent_->Stop(hurry() > 0 ? absl::Seconds(5) : kAgentGrace);
  }
  rpc_->Shutdown(kRpcDeadline);
  http_->Stop();
  coordinator_->Stop();
  if (const absl::Status status = PosixFileSystem().RemoveFile(JoinPath(flags_.data_dir, kAddressFile)); !status.ok()) {
    spdlog::warn("{}", status.ToString());
  }
}

}  // namespace slipway::server::app
