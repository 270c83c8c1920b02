// The agent's own figures for Prometheus at /metrics, and /healthz for a probe: 200 as long as the agent's loop turns.
// Thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_METRICS_ENDPOINT_H_
#define SLIPWAY_WORKER_AGENT_METRICS_ENDPOINT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace slipway::worker::agent {

struct AgentFigures {
  std::atomic<bool> connected = false;
  std::atomic<int64_t> connections_total = 0;
  std::atomic<int64_t> slots = 0;
  std::atomic<int64_t> ranks_running = 0;
  std::atomic<int64_t> metric_batches_dropped_total = 0;
  std::atomic<int64_t> coordinator_silence_milliseconds = 0;
  std::atomic<int64_t> last_turn_nanos = 0;  // of the loop, on the clock
};

// In Prometheus' text format.
std::string FormatFigures(const AgentFigures& figures);

class MetricsEndpoint {
 public:
  // `address` is HOST:PORT; `figures` and `clock` must outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address, const AgentFigures& figures,
                                                                const Clock& clock);
  virtual ~MetricsEndpoint() = default;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_METRICS_ENDPOINT_H_
