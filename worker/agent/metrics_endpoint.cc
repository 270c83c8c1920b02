#include "worker/agent/metrics_endpoint.h"

#include <httplib.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace slipway::worker::agent {
namespace {

// A loop that has not turned for so long hangs in a file system.
constexpr absl::Duration kHealthyTurn = absl::Seconds(30);

class HttpEndpoint final : public MetricsEndpoint {
 public:
  HttpEndpoint(const AgentFigures& figures, const Clock& clock) {
    server_.Get("/metrics", [&figures](const httplib::Request&, httplib::Response& response) {
      response.set_content(FormatFigures(figures), "text/plain; version=0.0.4");
    });
    server_.Get("/healthz", [&figures, &clock](const httplib::Request&, httplib::Response& response) {
      const bool healthy = clock.MonotonicNow() - absl::Nanoseconds(figures.last_turn_nanos.load()) < kHealthyTurn;
      response.status = healthy ? 200 : 503;
      response.set_content(healthy ? "ok\n" : "the agent's loop hangs\n", "text/plain");
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    // httplib's default lets two processes share a port.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
  }
  ~HttpEndpoint() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  bool Listen(const std::string& host, int port) {
    if (!server_.bind_to_port(host, port)) return false;
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) absl::SleepFor(absl::Milliseconds(1));  // stop() would be lost before
    return true;
  }

 private:
  httplib::Server server_;
  std::thread thread_;
};

}  // namespace

std::string FormatFigures(const AgentFigures& figures) {
  prometheus::Registry registry;
  const auto gauge = [&](const char* name, const char* help, double value) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}).Set(value);
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({}).Increment(static_cast<double>(value));
  };
  prometheus::BuildGauge()
      .Name("slipway_agent_build_info")
      .Help("Always 1.")
      .Register(registry)
      .Add({{"version", SLIPWAY_VERSION}})
      .Set(1);
  gauge("slipway_agent_connected", "1 while the coordinator answers.", figures.connected ? 1 : 0);
  gauge("slipway_agent_coordinator_silence_seconds", "Time since the coordinator's last word.",
        static_cast<double>(figures.coordinator_silence_milliseconds) / 1000);
  gauge("slipway_agent_slots", "Slots that this node offers.", static_cast<double>(figures.slots));
  gauge("slipway_agent_ranks", "Ranks that run on this node.", static_cast<double>(figures.ranks_running));
  counter("slipway_agent_connections_total", "Connections to the coordinator.", figures.connections_total);
  counter("slipway_agent_metric_batches_dropped_total", "Batches of training metrics lost while disconnected.",
          figures.metric_batches_dropped_total);
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& address,
                                                                        const AgentFigures& figures,
                                                                        const Clock& clock) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics \"", address, "\" is not HOST:PORT"));
  }
  auto endpoint = std::make_unique<HttpEndpoint>(figures, clock);
  if (!endpoint->Listen(address.substr(0, colon), port)) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " for metrics; is the port taken?"));
  }
  return std::unique_ptr<MetricsEndpoint>(std::move(endpoint));
}

}  // namespace slipway::worker::agent
