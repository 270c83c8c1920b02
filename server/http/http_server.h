// The HTTP port: /metrics for Prometheus, /healthz (the process serves) and /readyz (the store can be written).
// Start and Stop belong to one thread; the callbacks are called from several.
#ifndef SLIPWAY_SERVER_HTTP_HTTP_SERVER_H_
#define SLIPWAY_SERVER_HTTP_HTTP_SERVER_H_

#include <prometheus/metric_family.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace httplib {
class Server;
}  // namespace httplib

namespace slipway::server::http {

struct HttpServerOptions {
  std::string listen = "127.0.0.1:7671";  // port 0: any
  // All metrics there are now. May wait for a moment.
  std::function<std::vector<prometheus::MetricFamily>()> metrics;
  // Empty when ready, else why not.
  std::function<std::string()> unready_reason;
};

class HttpServer {
 public:
  explicit HttpServer(HttpServerOptions options);
  ~HttpServer();

  // Unavailable when the address is taken.
  absl::Status Start();
  const std::string& address() const { return address_; }
  void Stop();

 private:
  const HttpServerOptions options_;
  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace slipway::server::http

#endif  // SLIPWAY_SERVER_HTTP_HTTP_SERVER_H_
