#include "server/http/telemetry.h"

#include <prometheus/gauge.h>

#include "server/core/state.h"

namespace slipway::server::http {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

prometheus::Histogram& MakeHistogram(prometheus::Registry& registry, const std::string& name, const std::string& help,
                                     const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

prometheus::Family<prometheus::Counter>& MakeCounters(prometheus::Registry& registry, const std::string& name,
                                                      const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace

PrometheusTelemetry::PrometheusTelemetry(const std::string& version)
    : rpc_handled_(MakeCounters(registry_, "slipway_rpc_server_handled_total", "Calls answered, by method and code")),
      restarts_(MakeCounters(registry_, "slipway_restarts_total", "Restarts of jobs, by the class of their cause")),
      dropped_(MakeCounters(registry_, "slipway_stream_dropped_total", "Records that slow readers did not get")),
      store_errors_(MakeCounters(registry_, "slipway_store_errors_total", "Writes to the store that failed").Add({})),
      store_write_(MakeHistogram(registry_, "slipway_store_write_seconds", "Time of a synced write to the store",
                                 {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5})),
      queue_wait_(MakeHistogram(registry_, "slipway_queue_wait_seconds", "Time from submit to the first start",
                                {0.1, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400})) {
  prometheus::BuildGauge()
      .Name("slipway_build_info")
      .Help("1; the version is in the label")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
}

void PrometheusTelemetry::StoreWrite(absl::Duration duration, bool ok) {
  store_write_.Observe(absl::ToDoubleSeconds(duration));
  if (!ok) store_errors_.Increment();
}

void PrometheusTelemetry::RpcHandled(const std::string& method, const std::string& code) {
  rpc_handled_.Add({{"method", method}, {"code", code}}).Increment();
}

void PrometheusTelemetry::Restart(v1::CauseClass cause) {
  restarts_.Add({{"cause", core::CauseName(cause)}}).Increment();
}

void PrometheusTelemetry::QueueWait(absl::Duration duration) { queue_wait_.Observe(absl::ToDoubleSeconds(duration)); }

void PrometheusTelemetry::StreamDropped(const std::string& stream, int64_t count) {
  dropped_.Add({{"stream", stream}}).Increment(static_cast<double>(count));
}

}  // namespace slipway::server::http
