#include "server/rpc/job_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/status_macros.h"
#include "server/core/describe.h"
#include "server/rpc/query.h"
#include "server/rpc/unary.h"
#include "server/rpc/watch_stream.h"

namespace slipway::server::rpc {
namespace {

// The parts that all verbs share; the event follows.
template <typename Request>
Coordinator::Mutation MutationOf(const std::string& method, const Request& request) {
  return {.method = method, .request_id = request.request_id(), .body_hash = BodyHash(request), .job = request.job()};
}

// A verb that is a job and an etag.
template <typename Event, typename Request, typename Response>
grpc::ServerUnaryReactor* Steer(grpc::CallbackServerContext* context, Coordinator& coordinator,
                                const std::string& method, const Request& request, Response* response) {
  if (absl::Status status = CheckRequestId(request.request_id()); !status.ok()) return FinishNow(context, status);
  Coordinator::Mutation mutation = MutationOf(method, request);
  mutation.event = [etag = request.etag()](Coordinator::Turn&, const std::string& id) -> absl::StatusOr<core::Event> {
    return Event{id, etag};
  };
  return FinishWithMutation(context, coordinator, std::move(mutation), response);
}

bool Matches(const v1::Job& job, const v1::ListJobsRequest& request) {
  if (!request.project().empty() && job.project() != request.project()) return false;
  if (!request.name().empty() && job.name() != request.name()) return false;
  return request.states().empty() ||
         std::find(request.states().begin(), request.states().end(), job.state()) != request.states().end();
}

absl::Status ListPage(Coordinator::Turn& turn, const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
  SLIPWAY_ASSIGN_OR_RETURN(const size_t size, PageSize(request.page_size(), 50));
  const std::string query = QueryHash(request);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(query, request.page_token()));
  response->set_revision(turn.state().revision);
  // Ids sort by time: newest first is the order from behind, after the last one of the page before.
  const auto& jobs = turn.state().jobs;
  auto it = std::make_reverse_iterator(cursor.empty() ? jobs.end() : jobs.lower_bound(cursor));
  for (; it != jobs.rend(); ++it) {
    if (!Matches(it->second.job, request)) continue;
    if (static_cast<size_t>(response->jobs_size()) == size) {
      response->set_next_page_token(MakePageToken(query, response->jobs().rbegin()->id()));
      break;
    }
    *response->add_jobs() = core::Describe(turn.state(), it->second, turn.now(), false);
  }
  return absl::OkStatus();
}

absl::Status EventPage(Coordinator::Turn& turn, const store::Store& store, const v1::ListJobEventsRequest& request,
                       v1::ListJobEventsResponse* response) {
  SLIPWAY_ASSIGN_OR_RETURN(const size_t size, PageSize(request.page_size(), 200));
  SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request.job()));
  const std::string query = QueryHash(request);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(query, request.page_token()));
  int64_t after = 0;
  if (!cursor.empty() && !absl::SimpleAtoi(cursor, &after)) return absl::InvalidArgumentError("page_token: is broken");
  SLIPWAY_ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events, store.JobEventsAfter(id, after, size + 1));
  const bool more = events.size() > size;
  if (more) events.resize(size);
  for (v1::JobEvent& event : events) *response->add_events() = std::move(event);
  if (more) {
    response->set_next_page_token(MakePageToken(query, std::to_string(response->events().rbegin()->revision())));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::CreateJob(grpc::CallbackServerContext* context,
                                                    const v1::CreateJobRequest* request,
                                                    v1::CreateJobResponse* response) {
  if (absl::Status status = CheckRequestId(request->request_id()); !status.ok()) return FinishNow(context, status);
  absl::StatusOr<core::CreateJob> create = MakeCreateJob(*request, options_, clock_->WallNow());
  if (!create.ok()) return FinishNow(context, create.status());
  if (request->validate_only()) {
    return FinishWithRead(context, *coordinator_, [create = *std::move(create), response](Coordinator::Turn& turn) {
      v1::Job& job = *response->mutable_job();
      job.set_name(create.spec.name());
      job.set_project(create.spec.project());
      job.set_state(v1::JOB_STATE_QUEUED);
      *job.mutable_spec() = create.spec;
      return CheckCheckpointDir(turn.state(), create);
    });
  }
  Coordinator::Mutation mutation{
      .method = "CreateJob",
      .request_id = request->request_id(),
      .body_hash = BodyHash(*request),
      .creates = true,
      .event = [create = *std::move(create)](Coordinator::Turn& turn,
                                             const std::string&) -> absl::StatusOr<core::Event> {
        SLIPWAY_RETURN_IF_ERROR(CheckCheckpointDir(turn.state(), create));
        return create;
      }};
  return FinishWithMutation(context, *coordinator_, std::move(mutation), response);
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                                 v1::GetJobResponse* response) {
  return FinishWithRead(context, *coordinator_, [request, response](Coordinator::Turn& turn) -> absl::Status {
    SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request->job()));
    *response->mutable_job() = turn.Describe(id, true);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListJobsRequest* request, v1::ListJobsResponse* response) {
  return FinishWithRead(context, *coordinator_,
                        [=](Coordinator::Turn& turn) { return ListPage(turn, *request, response); });
}

grpc::ServerWriteReactor<v1::WatchJobsResponse>* JobServiceImpl::WatchJobs(grpc::CallbackServerContext*,
                                                                           const v1::WatchJobsRequest* request) {
  return StartWatch(*request, coordinator_);
}

grpc::ServerUnaryReactor* JobServiceImpl::PauseJob(grpc::CallbackServerContext* context,
                                                   const v1::PauseJobRequest* request, v1::PauseJobResponse* response) {
  return Steer<core::PauseJob>(context, *coordinator_, "PauseJob", *request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::ResumeJob(grpc::CallbackServerContext* context,
                                                    const v1::ResumeJobRequest* request,
                                                    v1::ResumeJobResponse* response) {
  if (absl::Status status = CheckRequestId(request->request_id()); !status.ok()) return FinishNow(context, status);
  Coordinator::Mutation mutation = MutationOf("ResumeJob", *request);
  mutation.event = [this, request = *request](Coordinator::Turn& turn,
                                              const std::string& id) -> absl::StatusOr<core::Event> {
    SLIPWAY_ASSIGN_OR_RETURN(core::ResumeJob resume, MakeResumeJob(request, turn.state().jobs.at(id), options_));
    return resume;
  };
  return FinishWithMutation(context, *coordinator_, std::move(mutation), response);
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                    const v1::CancelJobRequest* request,
                                                    v1::CancelJobResponse* response) {
  return Steer<core::CancelJob>(context, *coordinator_, "CancelJob", *request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::HoldJob(grpc::CallbackServerContext* context,
                                                  const v1::HoldJobRequest* request, v1::HoldJobResponse* response) {
  return Steer<core::HoldJob>(context, *coordinator_, "HoldJob", *request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::ReleaseJob(grpc::CallbackServerContext* context,
                                                     const v1::ReleaseJobRequest* request,
                                                     v1::ReleaseJobResponse* response) {
  return Steer<core::ReleaseJob>(context, *coordinator_, "ReleaseJob", *request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::CheckpointJob(grpc::CallbackServerContext* context,
                                                        const v1::CheckpointJobRequest* request,
                                                        v1::CheckpointJobResponse* response) {
  if (absl::Status status = CheckRequestId(request->request_id()); !status.ok()) return FinishNow(context, status);
  Coordinator::Mutation mutation = MutationOf("CheckpointJob", *request);
  mutation.event = [](Coordinator::Turn&, const std::string& id) -> absl::StatusOr<core::Event> {
    return core::CheckpointJob{id};
  };
  return FinishWithMutation(context, *coordinator_, std::move(mutation), response);
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobEvents(grpc::CallbackServerContext* context,
                                                        const v1::ListJobEventsRequest* request,
                                                        v1::ListJobEventsResponse* response) {
  return FinishWithRead(context, *coordinator_, [this, request, response](Coordinator::Turn& turn) {
    return EventPage(turn, coordinator_->store(), *request, response);
  });
}

}  // namespace slipway::server::rpc
