#include "server/rpc/query.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kMaxPage = 1000;
constexpr size_t kMaxRequestId = 36;

}  // namespace

std::string HashOf(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps in the order of their keys
    message.SerializeToCodedStream(&coded);
  }
  return ChecksumOf(bytes);
}

std::string MakePageToken(const std::string& query_hash, const std::string& cursor) {
  return absl::WebSafeBase64Escape(absl::StrCat(query_hash, "|", cursor));
}

absl::StatusOr<std::string> ReadPageToken(const std::string& query_hash, const std::string& token) {
  if (token.empty()) return std::string();
  std::string text;
  if (!absl::WebSafeBase64Unescape(token, &text) || text.find('|') == std::string::npos) {
    return WithReason(absl::InvalidArgumentError("page_token: is none that this server made"), "BAD_PAGE_TOKEN");
  }
  const size_t bar = text.find('|');
  if (text.substr(0, bar) != query_hash) {
    return WithReason(absl::InvalidArgumentError("page_token: belongs to a query with other fields"), "BAD_PAGE_TOKEN");
  }
  return text.substr(bar + 1);
}

absl::StatusOr<size_t> PageSize(int32_t asked, size_t normal) {
  if (asked < 0) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("page_size: ", asked, " is negative")), "BAD_PAGE_SIZE");
  }
  return asked == 0 ? normal : std::min(static_cast<size_t>(asked), kMaxPage);
}

absl::Status CheckRequestId(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (id.size() <= kMaxRequestId && printable) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError("request_id: must be at most 36 printable ASCII characters"),
                    "BAD_REQUEST_ID");
}

}  // namespace slipway::server::rpc
