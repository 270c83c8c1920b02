// The agent's end of its workers' lines: a Unix socket, the newest report of each rank, and the control that each rank
// gets, at least once a second. One thread uses it: the agent's loop polls its descriptors.
#ifndef SLIPWAY_WORKER_AGENT_WORKER_HUB_H_
#define SLIPWAY_WORKER_AGENT_WORKER_HUB_H_

#include <poll.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/unique_fd.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/agent/attempt_key.h"
#include "worker/link/frame_channel.h"

namespace slipway::worker::agent {

struct RankKey {
  AttemptKey attempt;
  int rank = 0;

  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};

class WorkerHub {
 public:
  // False when the report is from nobody we know: the connection is then closed.
  using OnReport = std::function<bool(const RankKey&, slipway::worker::v1::WorkerReport)>;
  struct Control {
    bool stop_requested = false;
    int64_t checkpoint_requests = 0;
    friend bool operator==(const Control&, const Control&) = default;
  };
  using ControlFor = std::function<Control(const RankKey&)>;

  // `path` must be ours alone (the state directory's lock). `clock` must outlive the hub.
  static absl::StatusOr<std::unique_ptr<WorkerHub>> Listen(const std::string& path, const Clock& clock,
                                                           OnReport on_report, ControlFor control_for);

  const std::string& path() const { return path_; }
  void AddPollFds(std::vector<pollfd>& fds) const;
  // Takes new connections and reports, sends what is due. Never blocks.
  void Serve();
  int connections() const { return static_cast<int>(connections_.size()); }

 private:
  struct Connection {
    link::FrameChannel channel;
    bool bound = false;  // its first report has said who it is
    RankKey key;
    int64_t acknowledged = 0;
    bool acknowledge = false;
    Control sent;
    absl::Duration sent_at = -absl::InfiniteDuration();
  };

  WorkerHub(std::string path, UniqueFd listener, const Clock& clock, OnReport on_report, ControlFor control_for);
  void Accept();
  absl::Status Receive(Connection& connection);
  absl::Status SendControl(Connection& connection);

  const std::string path_;
  const UniqueFd listener_;
  const Clock& clock_;
  const OnReport on_report_;
  const ControlFor control_for_;
  std::list<Connection> connections_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_WORKER_HUB_H_
