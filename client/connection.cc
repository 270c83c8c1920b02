#include "client/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace slipway::client {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // a page of 1,000 jobs with their specs
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // After a restart of the server the address is looked up again first; gRPC would wait 30 s before it does.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  // Retries are ours: gRPC's own would not know about request ids.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // The address is the user's; no proxy stands between a CLI and its coordinator unless asked for by name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Connection::Connection(ConnectionOptions options)
    : options_(std::move(options)),
      channel_(MakeChannel(options_.address)),
      jobs_(v1::JobService::NewStub(channel_)),
      nodes_(v1::NodeService::NewStub(channel_)),
      checkpoints_(v1::CheckpointService::NewStub(channel_)),
      metrics_(v1::MetricService::NewStub(channel_)),
      logs_(v1::LogService::NewStub(channel_)),
      admin_(v1::AdminService::NewStub(channel_)) {}

absl::Status Connection::Named(const grpc::Status& status) const {
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                           status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  absl::Status plain = FromGrpc(status);
  if (!unreachable) return plain;
  // "failed to connect to all addresses; last error: UNKNOWN: ipv4:…: Failed to connect to remote host: Connection
  // refused"
  std::string message(plain.message());
  if (absl::StrContains(message, "failed to connect to all addresses"))
    message = message.substr(message.rfind(": ") + 2);
  return absl::Status(plain.code(), absl::StrCat("no answer from a slipwayd at ", options_.address, ": ", message));
}

absl::Status Connection::Try(const std::function<grpc::Status(grpc::ClientContext*)>& call) const {
  const absl::Time deadline = absl::Now() + options_.timeout;
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const grpc::Status status = call(&context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return Named(status);
    const absl::Duration wait = std::max(backoff, RetryDelay(status));
    if (absl::Now() + wait >= deadline) return Named(status);
    for (const absl::Time until = absl::Now() + wait; absl::Now() < until;) {
      if (interrupted()) return absl::CancelledError("interrupted");
      absl::SleepFor(std::min(absl::Milliseconds(50), until - absl::Now()));
    }
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

std::string NewRequestId() {
  std::random_device random;
  const auto word = [&] { return static_cast<uint32_t>(random()); };
  const uint32_t a = word(), b = word(), c = word(), d = word();
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", a, b >> 16, b & 0xfff, 0x8000 | (c >> 16 & 0x3fff),
                         c & 0xffff, d);
}

}  // namespace slipway::client
