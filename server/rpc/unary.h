// Answering unary calls from the coordinator's thread. Internal to server/rpc.
#ifndef SLIPWAY_SERVER_RPC_UNARY_H_
#define SLIPWAY_SERVER_RPC_UNARY_H_

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {

inline grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// `read(turn)` fills the response on the coordinator's thread and returns the call's status.
template <typename Read>
grpc::ServerUnaryReactor* FinishWithRead(grpc::CallbackServerContext* context, Coordinator& coordinator, Read read) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator.Run([reactor, read = std::move(read)](Coordinator::Turn& turn) -> Coordinator::Completion {
    const absl::Status status = read(turn);
    return [reactor, status](const absl::Status&) { reactor->Finish(ToGrpc(status)); };
  });
  return reactor;
}

// Fills response->job.
template <typename Response>
grpc::ServerUnaryReactor* FinishWithMutation(grpc::CallbackServerContext* context, Coordinator& coordinator,
                                             Coordinator::Mutation mutation, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator.Mutate(std::move(mutation), [reactor, response](absl::StatusOr<Coordinator::Answer> answer) {
    if (answer.ok()) {
      if constexpr (requires { response->set_request_number(0); }) response->set_request_number(answer->number);
      *response->mutable_job() = std::move(answer->job);
    }
    reactor->Finish(ToGrpc(answer.status()));
  });
  return reactor;
}

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_UNARY_H_
