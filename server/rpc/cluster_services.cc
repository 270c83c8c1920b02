#include "server/rpc/cluster_services.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/timestamp.h"
#include "server/core/describe.h"
#include "server/rpc/log_stream.h"
#include "server/rpc/metric_stream.h"
#include "server/rpc/query.h"
#include "server/rpc/unary.h"

namespace slipway::server::rpc {
namespace {

absl::Status NodePage(Coordinator::Turn& turn, const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
  SLIPWAY_ASSIGN_OR_RETURN(const size_t size, PageSize(request.page_size(), 100));
  const std::string query = QueryHash(request);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(query, request.page_token()));
  for (auto it = turn.state().nodes.upper_bound(cursor); it != turn.state().nodes.end(); ++it) {
    if (static_cast<size_t>(response->nodes_size()) == size) {
      response->set_next_page_token(MakePageToken(query, response->nodes().rbegin()->id()));
      break;
    }
    *response->add_nodes() = core::DescribeNode(turn.state(), it->second);
  }
  return absl::OkStatus();
}

absl::Status CheckpointPage(Coordinator::Turn& turn, const v1::ListCheckpointsRequest& request,
                            v1::ListCheckpointsResponse* response) {
  SLIPWAY_ASSIGN_OR_RETURN(const size_t size, PageSize(request.page_size(), 200));
  SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request.job()));
  const std::string query = QueryHash(request);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(query, request.page_token()));
  int from = 0;
  if (!cursor.empty() && (!absl::SimpleAtoi(cursor, &from) || from < 0)) {
    return absl::InvalidArgumentError("page_token: is broken");
  }
  const auto& checkpoints = turn.state().jobs.at(id).job.checkpoints();
  for (int i = from; i < checkpoints.size(); ++i) {
    if (static_cast<size_t>(response->checkpoints_size()) == size) {
      response->set_next_page_token(MakePageToken(query, absl::StrCat(i)));
      break;
    }
    *response->add_checkpoints() = checkpoints[i];
  }
  return absl::OkStatus();
}

absl::Status Query(Coordinator::Turn& turn, const store::MetricStore& metrics, const v1::QueryMetricsRequest& request,
                   v1::QueryMetricsResponse* response) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::string id, turn.Resolve(request.job()));
  if (request.from_step() < 0 || request.to_step() < 0 || request.max_records() < 0) {
    return WithReason(absl::InvalidArgumentError("from_step, to_step and max_records must not be negative"),
                      "BAD_RANGE");
  }
  const size_t limit = request.max_records() == 0 ? 1000 : std::min<size_t>(10'000, request.max_records());
  SLIPWAY_ASSIGN_OR_RETURN(std::vector<v1::MetricRecord> records,
                           metrics.Query(id, request.from_step(), request.to_step(), limit));
  for (v1::MetricRecord& record : records) *response->add_records() = std::move(record);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* NodeServiceImpl::ListNodes(grpc::CallbackServerContext* context,
                                                     const v1::ListNodesRequest* request,
                                                     v1::ListNodesResponse* response) {
  return FinishWithRead(context, *coordinator_,
                        [=](Coordinator::Turn& turn) { return NodePage(turn, *request, response); });
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::ListCheckpoints(grpc::CallbackServerContext* context,
                                                                 const v1::ListCheckpointsRequest* request,
                                                                 v1::ListCheckpointsResponse* response) {
  return FinishWithRead(context, *coordinator_,
                        [=](Coordinator::Turn& turn) { return CheckpointPage(turn, *request, response); });
}

grpc::ServerUnaryReactor* MetricServiceImpl::QueryMetrics(grpc::CallbackServerContext* context,
                                                          const v1::QueryMetricsRequest* request,
                                                          v1::QueryMetricsResponse* response) {
  return FinishWithRead(context, *coordinator_, [this, request, response](Coordinator::Turn& turn) {
    return Query(turn, coordinator_->metric_store(), *request, response);
  });
}

grpc::ServerWriteReactor<v1::StreamMetricsResponse>* MetricServiceImpl::StreamMetrics(
    grpc::CallbackServerContext*, const v1::StreamMetricsRequest* request) {
  return StartMetricStream(*request, coordinator_);
}

grpc::ServerWriteReactor<v1::StreamLogsResponse>* LogServiceImpl::StreamLogs(grpc::CallbackServerContext*,
                                                                             const v1::StreamLogsRequest* request) {
  return StartLogStream(*request, coordinator_, agents_, router_);
}

grpc::ServerUnaryReactor* AdminServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetServerInfoRequest*,
                                                          v1::GetServerInfoResponse* response) {
  return FinishWithRead(context, *coordinator_, [this, response](Coordinator::Turn& turn) {
    response->set_version(version_);
    *response->mutable_start_time() = ToTimestamp(coordinator_->start_time());
    response->set_data_dir(coordinator_->options().data_dir);
    response->set_http_address(http_address_);
    response->set_revision(turn.state().revision);
    return absl::OkStatus();
  });
}

}  // namespace slipway::server::rpc
