// Streams over real gRPC: watches, metrics, logs and agents' sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/rpc/testing/rpc_fixture.h"

namespace slipway::server::rpc {
namespace {

using core::testing::ScriptedAgent;
using testing::AgentClient;
using testing::DetailOf;
using ::testing::HasSubstr;
using testing::ReasonOf;

using StreamTest = testing::RpcFixture;

TEST_F(StreamTest, WatchGivesASnapshotThenEventsAndGoesOnAfterAReconnect) {
  const std::string first = Submit("first");
  int64_t seen = 0;
  {
    grpc::ClientContext context;
    SetDeadline(context);
    auto watch = server_.jobs->WatchJobs(&context, {});
    v1::WatchJobsResponse response;
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.snapshot().id(), first);
    ASSERT_TRUE(watch->Read(&response));
    ASSERT_TRUE(response.has_bookmark());
    seen = response.bookmark().revision();
    const std::string second = Submit("second");
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.event().type(), "Submitted");
    EXPECT_EQ(response.event().revision(), seen + 1);
    EXPECT_EQ(response.job().id(), second);
    seen = response.event().revision();
    context.TryCancel();
  }
  Pause(first);
  Cancel(first);
  server_.Stop();
  server_.Start();
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobsRequest request;
  request.set_after_revision(seen);
  auto watch = server_.jobs->WatchJobs(&context, request);
  v1::WatchJobsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.event().type(), "Paused");
  EXPECT_EQ(response.event().revision(), seen + 1);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.event().type(), "Cancelled");
  context.TryCancel();
}

TEST_F(StreamTest, AWatchOfCompactedRevisionsIsOutOfRange) {
  server_.Stop();
  server_.coordinator_options.keep_events = 10;
  server_.Start();
  const std::string id = Submit("tiny");
  for (int i = 0; i < 20; ++i) {
    Pause(id);
    Resume(id);
  }
  grpc::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do {
    server_.Stop();  // events that are still in memory can be had for longer
    server_.Start();
    absl::SleepFor(absl::Milliseconds(100));
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchJobsRequest request;
    request.set_after_revision(1);
    auto watch = server_.jobs->WatchJobs(&context, request);
    v1::WatchJobsResponse response;
    if (watch->Read(&response)) context.TryCancel();
    status = watch->Finish();
  } while (status.error_code() != grpc::StatusCode::OUT_OF_RANGE && absl::Now() < deadline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_NE(DetailOf<google::rpc::ErrorInfo>(status).metadata().at("oldest_revision"), "0");
}

TEST_F(StreamTest, MetricsAreStoredAndStreamedAndTheStreamEndsWithTheJob) {
  auto agent = Agent("n1", 1);
  const std::string id = Submit("tiny");
  Await(id, v1::JOB_STATE_RUNNING);
  auto send = [&](int64_t step) {
    v1::AgentMessage message;
    message.mutable_metrics()->set_job_id(id);
    message.mutable_metrics()->set_epoch(1);
    v1::StepMetrics& metrics = *message.mutable_metrics()->add_records()->mutable_step();
    metrics.set_step(step);
    metrics.set_loss(1.0 / static_cast<double>(step));
    metrics.set_step_seconds(0.5);
    agent->Send(message);
  };
  for (int64_t step = 1; step <= 3; ++step) send(step);
  while (Get(id).progress().step() < 3) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_DOUBLE_EQ(Get(id).progress().eta_seconds(), 97 * 0.5);
  auto metrics = v1::MetricService::NewStub(server_.channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::StreamMetricsRequest request;
  request.set_job(id);
  request.set_from_step(2);
  auto stream = metrics->StreamMetrics(&context, request);
  v1::StreamMetricsResponse response;
  for (int64_t step = 2; step <= 3; ++step) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.record().step().step(), step);
  }
  send(4);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.record().step().step(), 4);
  Complete(*agent, id, 1, 1);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(MetricListenerTest, ASlowReaderLosesTheOldestAndIsToldHowMany) {
  MetricHub hub;
  auto listener = std::make_shared<MetricListener>(4, [] {});
  hub.Subscribe("a", listener);
  v1::MetricBatch batch;
  batch.set_job_id("a");
  for (int64_t step = 1; step <= 10; ++step) batch.add_records()->mutable_step()->set_step(step);
  EXPECT_EQ(hub.Publish(batch), 6);
  const auto item = listener->Next();
  EXPECT_EQ(item->record.step().step(), 7);
  EXPECT_EQ(item->dropped, 6);
  EXPECT_EQ(listener->Next()->dropped, 0);
}

// O7, the server's part
TEST_F(StreamTest, LogsComeThroughByteForByte) {
  const std::string line = "no newline at the end, and no UTF-8: \xff\xfe";
  const std::string large(1 << 20, 'x');
  auto agent = Agent("n1", 1);
  agent->on_log_read = [&](AgentClient& client, const v1::LogRead& read) {
    v1::AgentMessage message;
    message.mutable_log_chunk()->set_read_id(read.read_id());
    message.mutable_log_chunk()->set_epoch(read.epoch());
    message.mutable_log_chunk()->set_data(large);
    client.Send(message);
    message.mutable_log_chunk()->set_data(line);
    message.mutable_log_chunk()->set_end(true);
    client.Send(message);
  };
  const std::string id = Submit("tiny");
  Await(id, v1::JOB_STATE_RUNNING);
  Cancel(id);
  Await(id, v1::JOB_STATE_CANCELLED);
  auto logs = v1::LogService::NewStub(server_.channel);
  v1::StreamLogsRequest request;
  request.set_job(id);
  std::string text;
  {
    grpc::ClientContext context;
    SetDeadline(context);
    auto stream = logs->StreamLogs(&context, request);
    v1::StreamLogsResponse response;
    while (stream->Read(&response)) {
      EXPECT_LE(response.data().size(), 64u << 10);
      EXPECT_EQ(response.epoch(), 1);
      text += response.data();
    }
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_TRUE(text == large + line);
  agent.reset();
  while (true) {  // the server notices in a moment
    grpc::ClientContext context;
    SetDeadline(context);
    auto stream = logs->StreamLogs(&context, request);
    v1::StreamLogsResponse response;
    while (stream->Read(&response)) {
    }
    const grpc::Status status = stream->Finish();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) continue;
    EXPECT_THAT(status.error_message(), HasSubstr("n1"));
    break;
  }
}

TEST_F(StreamTest, ANewerSessionReplacesAnOlderOne) {
  auto first = Agent("n1", 1, 5);
  const std::string id = Submit("tiny");
  Await(id, v1::JOB_STATE_RUNNING);
  auto stale = Agent("n1", 1, 4);
  while (!stale->closed()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(stale->status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(stale->status()), "STALE_SESSION");
  AgentClient newer(server_.server->address(), first->agent(), 6);
  while (!first->closed()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(first->status().error_code(), grpc::StatusCode::ABORTED);
  Complete(newer, id, 1, 1);
  Await(id, v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace slipway::server::rpc
