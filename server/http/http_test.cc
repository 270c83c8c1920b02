#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <memory>
#include <string>

#include "common/timestamp.h"
#include "server/core/testing/test_cluster.h"
#include "server/http/cluster_metrics.h"
#include "server/http/http_server.h"
#include "server/http/telemetry.h"
#include "tests/support/status_matchers.h"

namespace slipway::server::http {
namespace {

using core::testing::TestCluster;
using core::testing::TestSpec;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const core::ClusterState& state, absl::Time now) {
  return prometheus::TextSerializer().Serialize(ClusterMetrics(state, now));
}

TEST(ClusterMetricsTest, SeriesOfAJobComeWithItAndGoAfterItsEnd) {
  TestCluster cluster;
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Submit("b", TestSpec(2));
  cluster.Settle();
  v1::MetricBatch batch;
  batch.set_job_id("a");
  batch.set_epoch(1);
  v1::StepMetrics& step = *batch.add_records()->mutable_step();
  step.set_step(3);
  step.set_loss(std::numeric_limits<double>::quiet_NaN());
  step.set_grad_norm(2.5);
  cluster.Do(core::AgentMetrics{batch});
  std::string text = Text(cluster.state, cluster.now.wall);
  EXPECT_THAT(text, HasSubstr("slipway_jobs{state=\"RUNNING\"} 1"));
  EXPECT_THAT(text, HasSubstr("slipway_jobs{state=\"FAILED\"} 0"));
  EXPECT_THAT(text, HasSubstr("slipway_nodes{state=\"CONNECTED\"} 1"));
  EXPECT_THAT(text, HasSubstr("slipway_slots_free{kind=\"cpu\"} 0"));
  EXPECT_THAT(text, HasSubstr("slipway_step{job=\"a\",name=\"a\",project=\"default\"} 3"));
  EXPECT_THAT(text, HasSubstr("slipway_loss{job=\"a\",name=\"a\",project=\"default\"} Nan"));
  EXPECT_THAT(text, HasSubstr("slipway_grad_norm{job=\"a\",name=\"a\",project=\"default\"} 2.5"));
  EXPECT_THAT(text, Not(HasSubstr("job=\"b\""))) << "a job that never ran has no series";
  cluster.Do(core::CancelJob{"a"});
  cluster.Sync("n1");
  ASSERT_EQ(cluster.State("a"), v1::JOB_STATE_CANCELLED);
  text = Text(cluster.state, cluster.now.wall + kSeriesGrace - absl::Seconds(1));
  EXPECT_THAT(text, HasSubstr("slipway_job_state{job=\"a\",name=\"a\",project=\"default\",state=\"CANCELLED\"} 1"));
  text = Text(cluster.state, cluster.now.wall + kSeriesGrace);
  EXPECT_THAT(text, Not(HasSubstr("job=\"a\"")));
}

// O12: whatever a name holds, each metric stays one line and its label one string.
TEST(ClusterMetricsTest, LabelsAreEscaped) {
  TestCluster cluster;
  cluster.Connect("n1", 1);
  v1::TrainingSpec spec = TestSpec();
  cluster.Submit("a", spec);
  cluster.Settle();
  cluster.state.jobs.at("a").job.set_name("x\"y\\z\n日本");
  EXPECT_THAT(Text(cluster.state, cluster.now.wall), HasSubstr("name=\"x\\\"y\\\\z\\n日本\""));
}

TEST(HttpServerTest, ServesMetricsHealthAndReadiness) {
  PrometheusTelemetry telemetry("1.2.3");
  telemetry.StoreWrite(absl::Milliseconds(3), true);
  telemetry.RpcHandled("/slipway.v1.JobService/GetJob", "OK");
  telemetry.Restart(v1::CAUSE_CLASS_NODE_LOST);
  telemetry.StreamDropped("metrics", 7);
  std::string reason = "the store is read-only: disk full";
  HttpServer server({.listen = "127.0.0.1:0",
                     .metrics = [&] { return telemetry.registry().Collect(); },
                     .unready_reason = [&] { return reason; }});
  ASSERT_OK(server.Start());
  httplib::Client client("http://" + server.address());
  auto health = client.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  auto ready = client.Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(ready->body, "the store is read-only: disk full\n");
  reason.clear();
  EXPECT_EQ(client.Get("/readyz")->status, 200);
  const std::string body = client.Get("/metrics")->body;
  EXPECT_THAT(body, HasSubstr("slipway_build_info{version=\"1.2.3\"} 1"));
  EXPECT_THAT(body, HasSubstr("slipway_store_write_seconds_bucket{le=\"0.005\"} 1"));
  EXPECT_THAT(body, HasSubstr("slipway_restarts_total{cause=\"NODE_LOST\"} 1"));
  EXPECT_THAT(body, HasSubstr("slipway_stream_dropped_total{stream=\"metrics\"} 7"));
  EXPECT_THAT(body, HasSubstr("code=\"OK\""));
  EXPECT_EQ(client.Get("/nothing")->status, 404);

  HttpServer second({.listen = server.address(), .metrics = nullptr, .unready_reason = nullptr});
  EXPECT_THAT(second.Start(), slipway::testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot listen")));
}

TEST(HttpServerTest, NamesABadAddress) {
  HttpServer server({.listen = "nonsense", .metrics = nullptr, .unready_reason = nullptr});
  EXPECT_THAT(server.Start(), slipway::testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host:port")));
}

}  // namespace
}  // namespace slipway::server::http
