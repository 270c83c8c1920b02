// A server and the calls that tests make of it.
#ifndef SLIPWAY_SERVER_RPC_TESTING_RPC_FIXTURE_H_
#define SLIPWAY_SERVER_RPC_TESTING_RPC_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/core/testing/scripted_agent.h"
#include "server/rpc/testing/agent_client.h"
#include "server/rpc/testing/test_server.h"

namespace slipway::server::rpc::testing {

using core::testing::ScriptedAgent;

template <typename Detail>
Detail DetailOf(const grpc::Status& status) {
  google::rpc::Status rich;
  EXPECT_TRUE(rich.ParseFromString(status.error_details()));
  Detail detail;
  for (const auto& any : rich.details()) {
    if (any.Is<Detail>()) any.UnpackTo(&detail);
  }
  return detail;
}

inline std::string ReasonOf(const grpc::Status& status) { return DetailOf<google::rpc::ErrorInfo>(status).reason(); }

class RpcFixture : public ::testing::Test {
 protected:
  RpcFixture() : server_(std::string("rpc_") + ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    server_.Start();
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  grpc::Status Create(const v1::CreateJobRequest& request, v1::Job* job) {
    v1::CreateJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = server_.jobs->CreateJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  std::string Submit(const std::string& name, int data = 1, const std::string& request_id = "") {
    v1::CreateJobRequest request;
    *request.mutable_spec() = MockSpec(name, data);
    request.set_request_id(request_id);
    v1::Job job;
    const grpc::Status status = Create(request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job.id();
  }
  v1::Job Get(const std::string& id) {
    v1::GetJobRequest request;
    request.set_job(id);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = server_.jobs->GetJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  // Waits until the job is in the state.
  v1::Job Await(const std::string& id, v1::JobState state) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      const v1::Job job = Get(id);
      if (job.state() == state) return job;
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << id << " is " << Get(id).ShortDebugString();
    return {};
  }
  grpc::Status Pause(const std::string& id, const std::string& etag = "") {
    v1::PauseJobRequest request;
    request.set_job(id);
    request.set_etag(etag);
    v1::PauseJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return server_.jobs->PauseJob(&context, request, &response);
  }
  grpc::Status Resume(const std::string& id, int data = 0) {
    v1::ResumeJobRequest request;
    request.set_job(id);
    if (data > 0) request.mutable_spec_patch()->mutable_parallelism()->set_data_parallel_size(data);
    v1::ResumeJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return server_.jobs->ResumeJob(&context, request, &response);
  }
  grpc::Status Cancel(const std::string& id) {
    v1::CancelJobRequest request;
    request.set_job(id);
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return server_.jobs->CancelJob(&context, request, &response);
  }
  std::unique_ptr<AgentClient> Agent(const std::string& node, int slots, int64_t session = 1) {
    return std::make_unique<AgentClient>(server_.server->address(), ScriptedAgent(node, slots), session);
  }
  static void Complete(AgentClient& agent, const std::string& id, int64_t epoch, int ranks) {
    agent.With([&](ScriptedAgent& scripted) {
      for (int rank = 0; rank < ranks; ++rank) scripted.Exit({id, epoch}, rank, v1::RANK_OUTCOME_COMPLETED);
    });
  }

  TestServer server_;
};

}  // namespace slipway::server::rpc::testing

#endif  // SLIPWAY_SERVER_RPC_TESTING_RPC_FIXTURE_H_
