// A scripted agent behind a real Session stream: it applies each desired state as it comes, reports and beats.
// Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_TESTING_AGENT_CLIENT_H_
#define SLIPWAY_SERVER_RPC_TESTING_AGENT_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "server/core/testing/scripted_agent.h"
#include "slipway/v1/agent_service.grpc.pb.h"

namespace slipway::server::rpc::testing {

class AgentClient {
 public:
  AgentClient(const std::string& address, core::testing::ScriptedAgent agent, int64_t session_number = 1)
      : stub_(v1::AgentService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        agent_(std::move(agent)) {
    stream_ = stub_->Session(&context_);
    v1::AgentMessage hello;
    *hello.mutable_hello() = agent_.Hello(session_number);
    stream_->Write(hello);
    reader_ = std::thread([this] { Read(); });
  }
  ~AgentClient() { Disconnect(); }

  void Disconnect() {
    context_.TryCancel();
    if (reader_.joinable()) reader_.join();
  }

  // Changes the agent and reports.
  void With(const std::function<void(core::testing::ScriptedAgent&)>& change) {
    absl::MutexLock lock(&mutex_);
    change(agent_);
    Report();
  }
  void Send(const v1::AgentMessage& message) {
    absl::MutexLock lock(&mutex_);
    stream_->Write(message);
  }
  core::testing::ScriptedAgent agent() {
    absl::MutexLock lock(&mutex_);
    return agent_;
  }
  bool closed() {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  grpc::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  v1::AgentWelcome welcome() {
    absl::MutexLock lock(&mutex_);
    return welcome_;
  }
  // Answers log reads; set before the first.
  std::function<void(AgentClient&, const v1::LogRead&)> on_log_read;

 private:
  void Read() {
    v1::CoordinatorMessage message;
    while (stream_->Read(&message)) {
      if (message.has_log_read() && on_log_read) on_log_read(*this, message.log_read());
      absl::MutexLock lock(&mutex_);
      if (message.has_welcome()) {
        welcome_ = message.welcome();
        Report();
      } else if (message.has_desired()) {
        agent_.Apply(message.desired());
        Report();
        v1::AgentMessage beat;
        beat.mutable_heartbeat()->set_applied_revision(agent_.applied_revision());
        stream_->Write(beat);
      }
    }
    const grpc::Status status = stream_->Finish();
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    status_ = status;
  }

  void Report() {
    v1::AgentMessage report;
    *report.mutable_observed() = agent_.Observe();
    stream_->Write(report);
  }

  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>> stream_;
  absl::Mutex mutex_;
  core::testing::ScriptedAgent agent_;
  bool closed_ = false;
  grpc::Status status_;
  v1::AgentWelcome welcome_;
  std::thread reader_;
};

}  // namespace slipway::server::rpc::testing

#endif  // SLIPWAY_SERVER_RPC_TESTING_AGENT_CLIENT_H_
