#include "worker/agent/session.h"

#include <algorithm>
#include <random>
#include <utility>

#include "spdlog/spdlog.h"

namespace slipway::worker::agent {
namespace {

using slipway::v1::AgentMessage;
using slipway::v1::CoordinatorMessage;

constexpr size_t kMaxMetricBatches = 8192;
constexpr size_t kMaxLogChunks = 16;  // of 64 KiB
constexpr absl::Duration kFirstRetry = absl::Milliseconds(200);
constexpr absl::Duration kLastRetry = absl::Seconds(2);
constexpr int kMaxMessageBytes = 64 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  // Finds a dead connection in half a minute; the coordinator allows a ping each 10 seconds.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 3'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Session::Session(std::string target, Callbacks callbacks)
    : target_(std::move(target)), callbacks_(std::move(callbacks)), thread_([this] { Run(); }) {}

Session::~Session() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

void Session::SetObserved(slipway::v1::ObservedState observed) {
  absl::MutexLock lock(&mutex_);
  if (open_) observed_ = std::move(observed);
}

void Session::Heartbeat(int64_t applied_revision) {
  absl::MutexLock lock(&mutex_);
  if (open_) heartbeat_ = applied_revision;
}

void Session::AddMetrics(slipway::v1::MetricBatch batch) {
  absl::MutexLock lock(&mutex_);
  if (metrics_.size() == kMaxMetricBatches) {
    metrics_.pop_front();
    ++dropped_metric_batches_;
  }
  metrics_.push_back(std::move(batch));
}

bool Session::OfferLogChunk(const slipway::v1::LogChunk& chunk) {
  absl::MutexLock lock(&mutex_);
  if (!open_ || log_chunks_.size() == kMaxLogChunks) return false;
  log_chunks_.push_back(chunk);
  return true;
}

bool Session::connected() const {
  absl::MutexLock lock(&mutex_);
  return welcomed_;
}

int64_t Session::dropped_metric_batches() const {
  absl::MutexLock lock(&mutex_);
  return dropped_metric_batches_;
}

bool Session::SomethingWaits() const {
  return welcomed_ && (observed_.has_value() || heartbeat_.has_value() || !metrics_.empty() || !log_chunks_.empty());
}

bool Session::WriterAwake() const { return !open_ || SomethingWaits(); }

bool Session::AllWritten() const { return !welcomed_ || (!SomethingWaits() && !writing_); }

bool Session::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &Session::AllWritten), timeout);
}

void Session::Run() {
  const auto stub = slipway::v1::AgentService::NewStub(MakeChannel(target_));
  std::mt19937 random(std::random_device{}());
  absl::Duration retry = kFirstRetry;
  while (true) {
    if (RunStream(*stub)) retry = kFirstRetry;
    absl::MutexLock lock(&mutex_);
    // Jitter keeps the agents of a cluster from coming back all at once.
    const double factor = std::uniform_real_distribution<double>(0.75, 1.25)(random);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), retry * factor)) return;
    retry = std::min(retry * 2, kLastRetry);
  }
}

bool Session::RunStream(slipway::v1::AgentService::Stub& stub) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);  // connecting, with its backoff, is the channel's business
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    context_ = &context;
  }
  const std::unique_ptr<Stream> stream = stub.Session(&context);
  AgentMessage hello;
  *hello.mutable_hello() = callbacks_.hello();
  bool answered = false;
  if (stream->Write(hello)) {
    {
      absl::MutexLock lock(&mutex_);
      open_ = true;
    }
    std::thread writer([&] { WriteLoop(*stream); });
    CoordinatorMessage message;
    while (stream->Read(&message)) {
      answered = true;
      callbacks_.message(std::move(message));
      absl::MutexLock lock(&mutex_);
      welcomed_ = true;
    }
    {
      absl::MutexLock lock(&mutex_);
      open_ = welcomed_ = false;
      observed_.reset();
      heartbeat_.reset();
      log_chunks_.clear();
    }
    writer.join();
  }
  const grpc::Status status = stream->Finish();
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    if (stopping_) return answered;
  }
  if (answered) {
    spdlog::warn("the coordinator at {} is gone ({}): connecting again", target_, status.error_message());
    callbacks_.disconnected();
  } else {
    spdlog::debug("no answer from the coordinator at {}: {}", target_, status.error_message());
  }
  return answered;
}

void Session::TakeNext(AgentMessage& message) {
  // The observation first: a heartbeat says that a revision has been applied, which the observation must show.
  if (observed_.has_value()) {
    *message.mutable_observed() = *std::move(observed_);
    observed_.reset();
  } else if (heartbeat_.has_value()) {
    message.mutable_heartbeat()->set_applied_revision(*heartbeat_);
    heartbeat_.reset();
  } else if (!metrics_.empty()) {
    *message.mutable_metrics() = std::move(metrics_.front());
    metrics_.pop_front();
  } else {
    *message.mutable_log_chunk() = std::move(log_chunks_.front());
    log_chunks_.pop_front();
  }
}

void Session::WriteLoop(Stream& stream) {
  while (true) {
    AgentMessage message;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      mutex_.Await(absl::Condition(this, &Session::WriterAwake));
      if (!open_) return;
      TakeNext(message);
      writing_ = true;
    }
    if (!stream.Write(message)) {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      return;  // the reader sees the end of the stream too
    }
  }
}

}  // namespace slipway::worker::agent
