// Page tokens (bound to the query that they continue), request ids and hashes of requests. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_RPC_QUERY_H_
#define SLIPWAY_SERVER_RPC_QUERY_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::server::rpc {

// Of the deterministic bytes of a message.
std::string HashOf(const google::protobuf::Message& message);

// Of a list request: without page_size and page_token.
template <typename Request>
std::string QueryHash(Request request) {
  request.clear_page_size();
  request.clear_page_token();
  return HashOf(request);
}

// Of a mutation: without request_id.
template <typename Request>
std::string BodyHash(Request request) {
  request.clear_request_id();
  return HashOf(request);
}

std::string MakePageToken(const std::string& query_hash, const std::string& cursor);
// The cursor; empty for an empty token. InvalidArgument for a token of another query or of nobody.
absl::StatusOr<std::string> ReadPageToken(const std::string& query_hash, const std::string& token);

// `asked` 0 means `normal`; InvalidArgument when negative; at most 1000.
absl::StatusOr<size_t> PageSize(int32_t asked, size_t normal);

// At most 36 printable ASCII characters, or nothing.
absl::Status CheckRequestId(const std::string& id);

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_QUERY_H_
