#include "worker/agent/testing/fake_coordinator.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace slipway::worker::agent {

using slipway::v1::CoordinatorMessage;

void FakeCoordinator::Start() {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

void FakeCoordinator::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeCoordinator::SetWelcome(double lease_seconds, double worker_lease_seconds) {
  absl::MutexLock lock(&mutex_);
  welcome_.set_lease_seconds(lease_seconds);
  welcome_.set_worker_lease_seconds(worker_lease_seconds);
  welcome_.set_heartbeat_seconds(0.2);
}

void FakeCoordinator::SendDesired() {
  CoordinatorMessage message;
  *message.mutable_desired() = desired_;
  if (stream_ != nullptr) stream_->Write(message);
}

void FakeCoordinator::SetDesired(std::vector<slipway::v1::DesiredAssignment> assignments) {
  absl::MutexLock lock(&mutex_);
  desired_.set_revision(desired_.revision() + 1);
  desired_.mutable_assignments()->Assign(assignments.begin(), assignments.end());
  SendDesired();
}

grpc::Status FakeCoordinator::Session(grpc::ServerContext*, Stream* stream) {
  slipway::v1::AgentMessage message;
  while (stream->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    Take(message);
    if (message.has_hello()) {
      stream_ = stream;
      CoordinatorMessage welcome;
      *welcome.mutable_welcome() = welcome_;
      stream->Write(welcome);
      SendDesired();
    } else if (message.has_heartbeat()) {
      CoordinatorMessage renewal;
      renewal.mutable_lease_renewal();
      stream->Write(renewal);
    }
  }
  absl::MutexLock lock(&mutex_);
  if (stream_ == stream) {
    stream_ = nullptr;
    observed_.Clear();
    applied_ = -1;
  }
  return grpc::Status::OK;
}

void FakeCoordinator::Take(const slipway::v1::AgentMessage& message) {
  if (message.has_hello()) {
    hello_ = message.hello();
    ++connections_;
  } else if (message.has_observed()) {
    observed_ = message.observed();
  } else if (message.has_heartbeat()) {
    applied_ = message.heartbeat().applied_revision();
  } else if (message.has_metrics()) {
    for (const auto& record : message.metrics().records()) metric_steps_.push_back(record.step().step());
  } else if (message.has_log_chunk()) {
    LogText& text = logs_[message.log_chunk().read_id()];
    text.by_rank[message.log_chunk().rank()] += message.log_chunk().data();
    text.end = text.end || message.log_chunk().end();
    text.error += message.log_chunk().error();
  }
}

bool FakeCoordinator::Await(const std::function<bool()>& condition, absl::Duration deadline) {
  const absl::Time end = absl::Now() + deadline;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

std::optional<slipway::v1::ObservedState> FakeCoordinator::AwaitObserved(const Wanted& wanted,
                                                                         absl::Duration deadline) {
  std::optional<slipway::v1::ObservedState> found;
  Await(
      [&] {
        absl::MutexLock lock(&mutex_);
        if (observed_.sequence() > 0 && wanted(observed_)) found = observed_;
        return found.has_value();
      },
      deadline);
  return found;
}

bool FakeCoordinator::AwaitApplied() {
  return Await(
      [&] {
        absl::MutexLock lock(&mutex_);
        return applied_ == desired_.revision();
      },
      absl::Seconds(30));
}

std::optional<slipway::v1::AgentHello> FakeCoordinator::LastHello() {
  absl::MutexLock lock(&mutex_);
  return hello_;
}

int FakeCoordinator::connections() {
  absl::MutexLock lock(&mutex_);
  return connections_;
}

std::vector<int64_t> FakeCoordinator::MetricSteps() {
  absl::MutexLock lock(&mutex_);
  return metric_steps_;
}

int64_t FakeCoordinator::StartLogRead(slipway::v1::LogRead read) {
  absl::MutexLock lock(&mutex_);
  static int64_t next_id = 0;
  read.set_read_id(++next_id);
  CoordinatorMessage message;
  *message.mutable_log_read() = std::move(read);
  if (stream_ != nullptr) stream_->Write(message);
  return next_id;
}

FakeCoordinator::LogText FakeCoordinator::LogSoFar(int64_t read_id) {
  absl::MutexLock lock(&mutex_);
  return logs_[read_id];
}

FakeCoordinator::LogText FakeCoordinator::ReadLog(slipway::v1::LogRead read) {
  const int64_t id = StartLogRead(std::move(read));
  Await([&] { return LogSoFar(id).end; }, absl::Seconds(30));
  return LogSoFar(id);
}

}  // namespace slipway::worker::agent
