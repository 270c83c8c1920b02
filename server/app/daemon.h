// slipwayd put together: data directory, store, coordinator, gRPC and HTTP servers and, with --local, the agent.
// One thread owns a Daemon.
#ifndef SLIPWAY_SERVER_APP_DAEMON_H_
#define SLIPWAY_SERVER_APP_DAEMON_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "server/app/flags.h"
#include "server/app/local_agent.h"
#include "server/http/http_server.h"
#include "server/http/telemetry.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/rpc_server.h"
#include "server/store/metric_store.h"
#include "server/store/store.h"

namespace slipway::server::app {

class Daemon {
 public:
  // Serves when this returns OK; the addresses are in <data dir>/slipwayd.json. FailedPrecondition when another
  // slipwayd has the data directory, naming its pid and the path.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Flags& flags, const std::string& binary_dir);
  ~Daemon();

  const std::string& grpc_address() const { return rpc_->address(); }
  const std::string& http_address() const { return http_->address(); }

  // Call now and then: looks after the agent and the health service. FailedPrecondition when the agent of --local
  // cannot run on this machine.
  absl::Status Supervise();
  // Ends everything. With --local, jobs first save and stop (they go back to the queue and go on at the next start);
  // `hurry` is asked again and again, and says how often the user wants it sooner: 1 skips the checkpoints, 2 the jobs.
  void Stop(const std::function<int()>& hurry);

 private:
  explicit Daemon(const Flags& flags) : flags_(flags), telemetry_(SLIPWAY_VERSION) {}

  absl::Status Open();
  absl::Status Serve();
  absl::Status StartAgent(const std::string& binary_dir);
  absl::Status StartRpc();
  absl::Status WriteAddresses();
  void DrainJobs(const std::function<int()>& hurry);
  std::vector<prometheus::MetricFamily> Metrics();

  const Flags flags_;
  RealClock clock_;
  http::PrometheusTelemetry telemetry_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<store::MetricStore> metrics_;
  std::unique_ptr<rpc::Coordinator> coordinator_;
  std::unique_ptr<rpc::RpcServer> rpc_;
  std::unique_ptr<http::HttpServer> http_;
  std::unique_ptr<LocalAgent> agent_;
};

}  // namespace slipway::server::app

#endif  // SLIPWAY_SERVER_APP_DAEMON_H_
