// A coordinator for tests of the agent: one gRPC service that a test tells what to want, and asks what it was told.
// Thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_TESTING_FAKE_COORDINATOR_H_
#define SLIPWAY_WORKER_AGENT_TESTING_FAKE_COORDINATOR_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "slipway/v1/agent_service.grpc.pb.h"
#include "slipway/v1/agent_service.pb.h"

namespace slipway::worker::agent {

class FakeCoordinator final : public slipway::v1::AgentService::Service {
 public:
  FakeCoordinator() = default;
  ~FakeCoordinator() override { Stop(); }

  // Serves on 127.0.0.1; the port stays the same over Stop and Start.
  void Start();
  // Ends every stream, as if the process had died.
  void Stop();
  std::string address() const;

  void SetWelcome(double lease_seconds, double worker_lease_seconds);
  // From now on, and for every agent that connects.
  void SetDesired(std::vector<slipway::v1::DesiredAssignment> assignments);

  // The newest observation that fulfils `wanted`; nothing after `deadline`.
  using Wanted = std::function<bool(const slipway::v1::ObservedState&)>;
  std::optional<slipway::v1::ObservedState> AwaitObserved(const Wanted& wanted,
                                                          absl::Duration deadline = absl::Seconds(30));
  // An agent has said that it applied the newest desired state.
  bool AwaitApplied();
  std::optional<slipway::v1::AgentHello> LastHello();
  int connections();
  std::vector<int64_t> MetricSteps();

  struct LogText {
    std::map<int, std::string> by_rank;
    bool end = false;
    std::string error;
  };
  int64_t StartLogRead(slipway::v1::LogRead read);
  LogText LogSoFar(int64_t read_id);
  LogText ReadLog(slipway::v1::LogRead read);  // to its end

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<slipway::v1::CoordinatorMessage, slipway::v1::AgentMessage>* stream) override;

 private:
  using Stream = grpc::ServerReaderWriter<slipway::v1::CoordinatorMessage, slipway::v1::AgentMessage>;
  void Take(const slipway::v1::AgentMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDesired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Await(const std::function<bool()>& condition, absl::Duration deadline);

  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  absl::Mutex mutex_;
  slipway::v1::AgentWelcome welcome_ ABSL_GUARDED_BY(mutex_);
  slipway::v1::DesiredState desired_ ABSL_GUARDED_BY(mutex_);
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::optional<slipway::v1::AgentHello> hello_ ABSL_GUARDED_BY(mutex_);
  slipway::v1::ObservedState observed_ ABSL_GUARDED_BY(mutex_);
  int64_t applied_ ABSL_GUARDED_BY(mutex_) = -1;
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> metric_steps_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, LogText> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_TESTING_FAKE_COORDINATOR_H_
