#include "server/rpc/rich_status.h"

#include <google/protobuf/any.pb.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace slipway::server::rpc {
namespace {

// All metadata of a reply must stay below 8 KiB.
constexpr size_t kMaxMessageBytes = 1500;
constexpr size_t kMaxDetailBytes = 4000;

std::string TypeUrl(const google::protobuf::Message& message) {
  return absl::StrCat("type.googleapis.com/", message.GetDescriptor()->full_name());
}

void SetPayload(absl::Status* status, const google::protobuf::Message& message) {
  if (!status->ok()) status->SetPayload(TypeUrl(message), absl::Cord(message.SerializeAsString()));
}

std::string Shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  return absl::StrCat(text.substr(0, limit / 2), " … ", text.substr(text.size() - limit / 2));
}

}  // namespace

absl::Status WithReason(absl::Status status, const std::string& reason,
                        const std::map<std::string, std::string>& metadata) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(kErrorDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  SetPayload(&status, info);
  return status;
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(absl::ToInt64Seconds(delay)))));
  SetPayload(&status, retry);
  return status;
}

absl::Status FaultsStatus(const engine::spec::SpecFaults& faults, const std::string& prefix) {
  google::rpc::BadRequest bad;
  for (const engine::spec::SpecFault& fault : faults) {
    auto& violation = *bad.add_field_violations();
    violation.set_field(absl::StrCat(prefix, fault.path));
    violation.set_description(
        Shortened(fault.value.empty() ? fault.message : absl::StrCat(fault.value, ": ", fault.message), 600));
    if (bad.ByteSizeLong() <= kMaxDetailBytes) continue;
    violation.set_field("");
    violation.set_description(
        absl::StrCat("and ", faults.size() - static_cast<size_t>(bad.field_violations_size()) + 1, " more faults"));
    break;
  }
  absl::Status status = absl::InvalidArgumentError(
      faults.size() == 1
          ? engine::spec::FaultText(faults[0])
          : absl::StrCat("the job has ", faults.size(), " faults; the first: ", engine::spec::FaultText(faults[0])));
  SetPayload(&status, bad);
  return WithReason(status, "INVALID_SPEC");
}

absl::Status WithPrecondition(absl::Status status, const std::string& subject) {
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  google::rpc::PreconditionFailure failure;
  auto& violation = *failure.add_violations();
  violation.set_type("JOB_STATE");
  violation.set_subject(subject);
  violation.set_description(Shortened(std::string(status.message()), 500));
  SetPayload(&status, failure);
  return WithReason(status, "WRONG_STATE", {{"job", subject}});
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(Shortened(std::string(status.message()), kMaxMessageBytes));
  google::rpc::ErrorInfo info;
  if (!status.GetPayload(TypeUrl(info)).has_value()) {
    info.set_reason(absl::StatusCodeToString(status.code()));
    info.set_domain(kErrorDomain);
    rich.add_details()->PackFrom(info);
  }
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    google::protobuf::Any& any = *rich.add_details();
    any.set_type_url(std::string(url));
    any.set_value(std::string(payload));
  });
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), rich.message(), rich.SerializeAsString());
}

}  // namespace slipway::server::rpc
