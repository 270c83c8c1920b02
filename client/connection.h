// The way to a coordinator: one channel, deadlines, and retries where they are safe. Thread-safe.
//
//   Connection connection({.address = "127.0.0.1:7670"});
//   SLIPWAY_ASSIGN_OR_RETURN(v1::GetJobResponse response, connection.Call(&v1::JobService::Stub::GetJob,
//   connection.jobs(), request));
#ifndef SLIPWAY_CLIENT_CONNECTION_H_
#define SLIPWAY_CLIENT_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/rpc_status.h"
#include "slipway/v1/cluster_service.grpc.pb.h"
#include "slipway/v1/job_service.grpc.pb.h"

namespace slipway::client {

struct ConnectionOptions {
  std::string address;                         // "host:port" or "unix:/path"
  absl::Duration timeout = absl::Seconds(20);  // of a call, all its tries together
  std::function<bool()> interrupted = [] { return false; };
};

class Connection {
 public:
  explicit Connection(ConnectionOptions options);

  const std::string& address() const { return options_.address; }
  bool interrupted() const { return options_.interrupted(); }

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::NodeService::Stub& nodes() { return *nodes_; }
  v1::CheckpointService::Stub& checkpoints() { return *checkpoints_; }
  v1::MetricService::Stub& metrics() { return *metrics_; }
  v1::LogService::Stub& logs() { return *logs_; }
  v1::AdminService::Stub& admin() { return *admin_; }

  // A call with one answer. Tried again only on UNAVAILABLE, until the timeout: every verb that changes something
  // carries a request id, so that doing it twice does it once. An unreachable server is an error that names its
  // address.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                Stub& stub, const Request& request) {
    Response response;
    absl::Status status = Try([&](grpc::ClientContext* context) {
      response.Clear();
      return (stub.*method)(context, request, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  // One try without a retry, with its own timeout.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> CallOnce(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                    Stub& stub, const Request& request, absl::Duration timeout) {
    Response response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    absl::Status status = Named((stub.*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  // FromGrpc, with the server's address where it could not be reached.
  absl::Status Named(const grpc::Status& status) const;

 private:
  absl::Status Try(const std::function<grpc::Status(grpc::ClientContext*)>& call) const;

  ConnectionOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::NodeService::Stub> nodes_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<v1::MetricService::Stub> metrics_;
  std::unique_ptr<v1::LogService::Stub> logs_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A random UUID (version 4), for request ids.
std::string NewRequestId();

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_CONNECTION_H_
