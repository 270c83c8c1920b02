#include "client/rpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace slipway::client {
namespace {

constexpr char kFaultsPayload[] = "slipway/bad-request";

// "spec.training.seed" is training.seed of a job file.
std::string FieldOf(const google::rpc::BadRequest::FieldViolation& violation) {
  return std::string(absl::StripPrefix(absl::StripPrefix(violation.field(), "spec."), "spec_patch."));
}

void AppendDetail(const google::protobuf::Any& any, std::string* message) {
  google::rpc::BadRequest bad_request;
  google::rpc::PreconditionFailure precondition;
  google::rpc::QuotaFailure quota;
  if (any.UnpackTo(&bad_request)) {
    for (const auto& violation : bad_request.field_violations()) {
      // A single fault is usually the summary itself.
      if (bad_request.field_violations_size() == 1 && absl::StrContains(*message, violation.description())) continue;
      const std::string field = FieldOf(violation);
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
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), message);
  for (const google::protobuf::Any& any : details.details()) {
    if (any.Is<google::rpc::BadRequest>()) result.SetPayload(kFaultsPayload, absl::Cord(any.value()));
  }
  return result;
}

engine::spec::SpecFaults FaultsOf(const absl::Status& status) {
  engine::spec::SpecFaults faults;
  google::rpc::BadRequest bad_request;
  const auto payload = status.GetPayload(kFaultsPayload);
  if (!payload.has_value() || !bad_request.ParseFromString(std::string(*payload))) return faults;
  for (const auto& violation : bad_request.field_violations()) {
    faults.push_back({.path = FieldOf(violation), .message = violation.description()});
  }
  return faults;
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
