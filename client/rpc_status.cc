#include "client/rpc_status.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace slipway::client {
namespace {

void AppendDetail(const google::protobuf::Any& any, std::string* message) {
  google::rpc::BadRequest bad_request;
  google::rpc::PreconditionFailure precondition;
  google::rpc::QuotaFailure quota;
  if (any.UnpackTo(&bad_request)) {
    for (const auto& violation : bad_request.field_violations()) {
      // A single fault is usually the summary itself.
      if (bad_request.field_violations_size() == 1 && absl::StrContains(*message, violation.description())) continue;
      const absl::string_view field = absl::StripPrefix(absl::StripPrefix(violation.field(), "spec."), "spec_patch.");
      absl::StrAppend(message, "\n  ", field, field.empty() ? "" : ": ", violation.description());
    }
  } else if (any.UnpackTo(&precondition)) {
    for (const auto& violation : precondition.violations()) {
      if (!absl::StrContains(*message, violation.description()))
        absl::StrAppend(message, "\n  ", violation.description());
    }
  } else if (any.UnpackTo(&quota)) {
    for (const auto& violation : quota.violations()) absl::StrAppend(message, "\n  ", violation.description());
  }
}

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  std::string message = status.error_message();
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) AppendDetail(any, &message);
  if (message.empty()) message = "the server gave no reason";
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), message);
}

absl::Duration RetryDelay(const grpc::Status& status) {
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo info;
    if (any.UnpackTo(&info)) {
      return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
    }
  }
  return absl::ZeroDuration();
}

}  // namespace slipway::client
