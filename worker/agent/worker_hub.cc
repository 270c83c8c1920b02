#include "worker/agent/worker_hub.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "worker/link/unix_socket.h"

namespace slipway::worker::agent {
namespace {

constexpr absl::Duration kControlInterval = absl::Seconds(1);
// A worker that does not read (stopped, swapped out) is not sent more than this.
constexpr size_t kMaxUnsentBytes = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerHub>> WorkerHub::Listen(const std::string& path, const Clock& clock,
                                                             OnReport on_report, ControlFor control_for) {
  SLIPWAY_ASSIGN_OR_RETURN(UniqueFd listener, link::ListenUnix(path));
  return std::unique_ptr<WorkerHub>(
      new WorkerHub(path, std::move(listener), clock, std::move(on_report), std::move(control_for)));
}

WorkerHub::WorkerHub(std::string path, UniqueFd listener, const Clock& clock, OnReport on_report,
                     ControlFor control_for)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      clock_(clock),
      on_report_(std::move(on_report)),
      control_for_(std::move(control_for)) {}

void WorkerHub::AddPollFds(std::vector<pollfd>& fds) const {
  fds.push_back({.fd = listener_.get(), .events = POLLIN});
  for (const Connection& connection : connections_) {
    const int events = connection.channel.wants_write() ? POLLIN | POLLOUT : POLLIN;
    fds.push_back({.fd = connection.channel.fd(), .events = static_cast<short>(events)});
  }
}

void WorkerHub::Accept() {
  while (true) {
    absl::StatusOr<UniqueFd> socket = link::AcceptUnix(listener_.get());
    if (socket.ok()) {
      connections_.push_back({.channel = link::FrameChannel(*std::move(socket))});
      continue;
    }
    if (absl::IsPermissionDenied(socket.status())) {
      spdlog::warn("{}", socket.status().ToString());
      continue;
    }
    return;
  }
}

void WorkerHub::Serve() {
  Accept();
  for (auto it = connections_.begin(); it != connections_.end();) {
    absl::Status status = Receive(*it);
    if (status.ok()) status = SendControl(*it);
    if (status.ok()) {
      ++it;
      continue;
    }
    spdlog::debug("a worker's connection ({}, rank {}): {}", ToText(it->key.attempt), it->key.rank, status.ToString());
    it = connections_.erase(it);
  }
}

absl::Status WorkerHub::Receive(Connection& connection) {
  std::vector<std::string> frames;
  const absl::Status received = connection.channel.Receive(frames);
  for (const std::string& frame : frames) {
    slipway::worker::v1::WorkerReport report;
    if (!report.ParseFromString(frame)) return absl::InvalidArgumentError("a frame is not a WorkerReport");
    const RankKey key{{report.job_id(), report.epoch()}, report.rank()};
    if (connection.bound && key != connection.key) return absl::InvalidArgumentError("the worker changed its name");
    connection.key = key;
    connection.bound = true;
    connection.acknowledged = report.sequence();
    connection.acknowledge = connection.acknowledge || report.metrics_size() > 0;
    if (!on_report_(key, std::move(report))) return absl::NotFoundError("no such rank runs here");
  }
  return received;
}

absl::Status WorkerHub::SendControl(Connection& connection) {
  SLIPWAY_RETURN_IF_ERROR(connection.channel.Flush());
  if (!connection.bound || connection.channel.unsent_bytes() > kMaxUnsentBytes) return absl::OkStatus();
  const absl::Duration now = clock_.MonotonicNow();
  const Control control = control_for_(connection.key);
  if (control == connection.sent && !connection.acknowledge && now - connection.sent_at < kControlInterval) {
    return absl::OkStatus();
  }
  slipway::worker::v1::WorkerControl message;
  message.set_stop_requested(control.stop_requested);
  message.set_checkpoint_requests(control.checkpoint_requests);
  message.set_acknowledged_sequence(connection.acknowledged);
  connection.sent = control;
  connection.sent_at = now;
  connection.acknowledge = false;
  return connection.channel.Send(message);
}

}  // namespace slipway::worker::agent
