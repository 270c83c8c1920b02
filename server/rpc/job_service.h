// JobService over the coordinator: thin handlers, one call each. Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_JOB_SERVICE_H_
#define SLIPWAY_SERVER_RPC_JOB_SERVICE_H_

#include "common/clock.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/submit.h"
#include "slipway/v1/job_service.grpc.pb.h"

namespace slipway::server::rpc {

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  // Neither pointer is owned; both outlive the server.
  JobServiceImpl(SubmitOptions options, Coordinator* coordinator, Clock* clock)
      : options_(std::move(options)), coordinator_(coordinator), clock_(clock) {}

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
                                      v1::CreateJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(grpc::CallbackServerContext* context,
                                                             const v1::WatchJobsRequest* request) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context, const v1::PauseJobRequest* request,
                                     v1::PauseJobResponse* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context, const v1::ResumeJobRequest* request,
                                      v1::ResumeJobResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* HoldJob(grpc::CallbackServerContext* context, const v1::HoldJobRequest* request,
                                    v1::HoldJobResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseJob(grpc::CallbackServerContext* context, const v1::ReleaseJobRequest* request,
                                       v1::ReleaseJobResponse* response) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext* context, const v1::CheckpointJobRequest* request,
                                          v1::CheckpointJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobEvents(grpc::CallbackServerContext* context, const v1::ListJobEventsRequest* request,
                                          v1::ListJobEventsResponse* response) override;

 private:
  const SubmitOptions options_;
  Coordinator* const coordinator_;
  Clock* const clock_;
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_JOB_SERVICE_H_
