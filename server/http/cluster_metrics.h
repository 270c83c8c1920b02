// What the state says, as metrics. Made anew for each scrape, so that the series of a job go when the job has gone
// (after a grace that lets a last scrape see its end). Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_HTTP_CLUSTER_METRICS_H_
#define SLIPWAY_SERVER_HTTP_CLUSTER_METRICS_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "absl/time/time.h"
#include "server/core/state.h"

namespace slipway::server::http {

inline constexpr absl::Duration kSeriesGrace = absl::Minutes(15);

std::vector<prometheus::MetricFamily> ClusterMetrics(const core::ClusterState& state, absl::Time now);

}  // namespace slipway::server::http

#endif  // SLIPWAY_SERVER_HTTP_CLUSTER_METRICS_H_
