#include "server/core/job_id.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slipway::server::core {
namespace {

constexpr absl::string_view kAlphabet = "0123456789abcdefghjkmnpqrstvwxyz";

std::string Base32(uint64_t value, int letters) {
  std::string text(static_cast<size_t>(letters), '0');
  for (auto it = text.rbegin(); it != text.rend(); ++it, value >>= 5) *it = kAlphabet[value & 31];
  return text;
}

}  // namespace

std::string MakeJobId(absl::Time time, uint64_t random) {
  return absl::StrCat("job-", Base32(static_cast<uint64_t>(absl::ToUnixMillis(time)), 9), Base32(random, 6));
}

}  // namespace slipway::server::core
