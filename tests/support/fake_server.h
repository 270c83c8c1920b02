// A coordinator made of lambdas, on a real gRPC port, for tests of the client.
#ifndef SLIPWAY_TESTS_SUPPORT_FAKE_SERVER_H_
#define SLIPWAY_TESTS_SUPPORT_FAKE_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "slipway/v1/cluster_service.grpc.pb.h"
#include "slipway/v1/job_service.grpc.pb.h"

namespace slipway::testing {

template <typename Request, typename Response>
using Unary = std::function<grpc::Status(const Request&, Response*)>;
template <typename Request, typename Response>
using Streaming = std::function<grpc::Status(grpc::ServerContext*, const Request&, grpc::ServerWriter<Response>*)>;

// What each call does; calls without a function answer UNIMPLEMENTED.
struct FakeBehavior {
  Unary<v1::CreateJobRequest, v1::CreateJobResponse> create_job;
  Unary<v1::GetJobRequest, v1::GetJobResponse> get_job;
  Unary<v1::ListJobsRequest, v1::ListJobsResponse> list_jobs;
  Unary<v1::PauseJobRequest, v1::PauseJobResponse> pause_job;
  Unary<v1::ResumeJobRequest, v1::ResumeJobResponse> resume_job;
  Unary<v1::CancelJobRequest, v1::CancelJobResponse> cancel_job;
  Unary<v1::CheckpointJobRequest, v1::CheckpointJobResponse> checkpoint_job;
  Unary<v1::ListJobEventsRequest, v1::ListJobEventsResponse> list_events;
  Unary<v1::ListNodesRequest, v1::ListNodesResponse> list_nodes;
  Unary<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse> list_checkpoints;
  Unary<v1::QueryMetricsRequest, v1::QueryMetricsResponse> query_metrics;
  Unary<v1::GetServerInfoRequest, v1::GetServerInfoResponse> server_info;
  Streaming<v1::WatchJobsRequest, v1::WatchJobsResponse> watch_jobs;
  Streaming<v1::StreamMetricsRequest, v1::StreamMetricsResponse> stream_metrics;
  Streaming<v1::StreamLogsRequest, v1::StreamLogsResponse> stream_logs;
};

class FakeServer {
 public:
  // Port 0 takes a free one.
  explicit FakeServer(FakeBehavior behavior, int port = 0)
      : jobs_(&behavior_),
        nodes_(&behavior_),
        checkpoints_(&behavior_),
        metrics_(&behavior_),
        logs_(&behavior_),
        admin_(&behavior_),
        behavior_(std::move(behavior)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    for (grpc::Service* service :
         std::initializer_list<grpc::Service*>{&jobs_, &nodes_, &checkpoints_, &metrics_, &logs_, &admin_}) {
      builder.RegisterService(service);
    }
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200)); }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  struct Jobs final : v1::JobService::Service {
    explicit Jobs(FakeBehavior* b) : behavior(b) {}
    grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* q, v1::CreateJobResponse* r) override {
      return behavior->create_job ? behavior->create_job(*q, r) : Missing();
    }
    grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* q, v1::GetJobResponse* r) override {
      return behavior->get_job ? behavior->get_job(*q, r) : Missing();
    }
    grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* q, v1::ListJobsResponse* r) override {
      return behavior->list_jobs ? behavior->list_jobs(*q, r) : Missing();
    }
    grpc::Status PauseJob(grpc::ServerContext*, const v1::PauseJobRequest* q, v1::PauseJobResponse* r) override {
      return behavior->pause_job ? behavior->pause_job(*q, r) : Missing();
    }
    grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* q, v1::ResumeJobResponse* r) override {
      return behavior->resume_job ? behavior->resume_job(*q, r) : Missing();
    }
    grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* q, v1::CancelJobResponse* r) override {
      return behavior->cancel_job ? behavior->cancel_job(*q, r) : Missing();
    }
    grpc::Status CheckpointJob(grpc::ServerContext*, const v1::CheckpointJobRequest* q,
                               v1::CheckpointJobResponse* r) override {
      return behavior->checkpoint_job ? behavior->checkpoint_job(*q, r) : Missing();
    }
    grpc::Status ListJobEvents(grpc::ServerContext*, const v1::ListJobEventsRequest* q,
                               v1::ListJobEventsResponse* r) override {
      return behavior->list_events ? behavior->list_events(*q, r) : Missing();
    }
    grpc::Status WatchJobs(grpc::ServerContext* c, const v1::WatchJobsRequest* q,
                           grpc::ServerWriter<v1::WatchJobsResponse>* w) override {
      return behavior->watch_jobs ? behavior->watch_jobs(c, *q, w) : Missing();
    }
    FakeBehavior* behavior;
  };
  struct Nodes final : v1::NodeService::Service {
    explicit Nodes(FakeBehavior* b) : behavior(b) {}
    grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* q, v1::ListNodesResponse* r) override {
      return behavior->list_nodes ? behavior->list_nodes(*q, r) : Missing();
    }
    FakeBehavior* behavior;
  };
  struct Checkpoints final : v1::CheckpointService::Service {
    explicit Checkpoints(FakeBehavior* b) : behavior(b) {}
    grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* q,
                                 v1::ListCheckpointsResponse* r) override {
      return behavior->list_checkpoints ? behavior->list_checkpoints(*q, r) : Missing();
    }
    FakeBehavior* behavior;
  };
  struct Metrics final : v1::MetricService::Service {
    explicit Metrics(FakeBehavior* b) : behavior(b) {}
    grpc::Status QueryMetrics(grpc::ServerContext*, const v1::QueryMetricsRequest* q,
                              v1::QueryMetricsResponse* r) override {
      return behavior->query_metrics ? behavior->query_metrics(*q, r) : Missing();
    }
    grpc::Status StreamMetrics(grpc::ServerContext* c, const v1::StreamMetricsRequest* q,
                               grpc::ServerWriter<v1::StreamMetricsResponse>* w) override {
      return behavior->stream_metrics ? behavior->stream_metrics(c, *q, w) : Missing();
    }
    FakeBehavior* behavior;
  };
  struct Logs final : v1::LogService::Service {
    explicit Logs(FakeBehavior* b) : behavior(b) {}
    grpc::Status StreamLogs(grpc::ServerContext* c, const v1::StreamLogsRequest* q,
                            grpc::ServerWriter<v1::StreamLogsResponse>* w) override {
      return behavior->stream_logs ? behavior->stream_logs(c, *q, w) : Missing();
    }
    FakeBehavior* behavior;
  };
  struct Admin final : v1::AdminService::Service {
    explicit Admin(FakeBehavior* b) : behavior(b) {}
    grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest* q,
                               v1::GetServerInfoResponse* r) override {
      return behavior->server_info ? behavior->server_info(*q, r) : Missing();
    }
    FakeBehavior* behavior;
  };
  static grpc::Status Missing() { return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "not part of this test"); }

  Jobs jobs_;
  Nodes nodes_;
  Checkpoints checkpoints_;
  Metrics metrics_;
  Logs logs_;
  Admin admin_;
  FakeBehavior behavior_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A status with google.rpc details.
template <typename... Details>
grpc::Status RichStatus(grpc::StatusCode code, const std::string& message, const Details&... details) {
  google::rpc::Status rich;
  rich.set_code(code);
  rich.set_message(message);
  (rich.add_details()->PackFrom(details), ...);
  return grpc::Status(code, message, rich.SerializeAsString());
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_FAKE_SERVER_H_
