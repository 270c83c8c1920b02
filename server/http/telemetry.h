// The daemon's own counters and histograms, in Prometheus' form. Thread-safe.
#ifndef SLIPWAY_SERVER_HTTP_TELEMETRY_H_
#define SLIPWAY_SERVER_HTTP_TELEMETRY_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <vector>

#include "server/core/telemetry.h"

namespace slipway::server::http {

class PrometheusTelemetry final : public core::Telemetry {
 public:
  explicit PrometheusTelemetry(const std::string& version);

  void StoreWrite(absl::Duration duration, bool ok) override;
  void RpcHandled(const std::string& method, const std::string& code) override;
  void Restart(v1::CauseClass cause) override;
  void QueueWait(absl::Duration duration) override;
  void StreamDropped(const std::string& stream, int64_t count) override;

  const prometheus::Registry& registry() const { return registry_; }

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& rpc_handled_;
  prometheus::Family<prometheus::Counter>& restarts_;
  prometheus::Family<prometheus::Counter>& dropped_;
  prometheus::Counter& store_errors_;
  prometheus::Histogram& store_write_;
  prometheus::Histogram& queue_wait_;
};

}  // namespace slipway::server::http

#endif  // SLIPWAY_SERVER_HTTP_TELEMETRY_H_
