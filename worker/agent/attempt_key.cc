#include "worker/agent/attempt_key.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::worker::agent {
namespace {

// The number in "<letter><number>", as in "e3" or "r0".
std::optional<int64_t> NumberAfter(char letter, const std::string& name) {
  int64_t number = 0;
  if (name.size() < 2 || name[0] != letter || !absl::SimpleAtoi(name.substr(1), &number) || number < 0) return {};
  return number;
}

absl::StatusOr<std::vector<std::string>> ListOrNothing(FileSystem& files, const std::string& directory) {
  absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

}  // namespace

std::string ToText(const AttemptKey& key) { return absl::StrCat(key.job_id, "/e", key.epoch); }

absl::Status ValidateJobId(std::string_view job_id) {
  const bool good = !job_id.empty() && job_id.size() <= 128 && job_id[0] != '.' &&
                    std::all_of(job_id.begin(), job_id.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("job id \"", absl::CHexEscape(std::string(job_id)),
                   "\": 1 to 128 letters, digits, '-', '_' and '.' are allowed, not starting with '.'"));
}

std::string AttemptDirectory(const std::string& state_dir, const AttemptKey& key) {
  return absl::StrCat(state_dir, "/attempts/", key.job_id, "/e", key.epoch);
}

std::string RankDirectory(const std::string& attempt_dir, int rank) { return absl::StrCat(attempt_dir, "/r", rank); }

std::string PreflightDirectory(const std::string& attempt_dir) { return attempt_dir + "/preflight"; }

std::string LogPath(const std::string& output_dir, int64_t epoch, int rank) {
  return absl::StrCat(output_dir, "/logs/e", epoch, "/rank", rank, ".log");
}

absl::StatusOr<std::vector<AttemptKey>> ListAttempts(FileSystem& files, const std::string& state_dir) {
  std::vector<AttemptKey> keys;
  const std::string root = JoinPath(state_dir, "attempts");
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, ListOrNothing(files, root));
  for (const std::string& job : jobs) {
    SLIPWAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListOrNothing(files, JoinPath(root, job)));
    for (const std::string& name : names) {
      if (const std::optional<int64_t> epoch = NumberAfter('e', name)) keys.push_back({job, *epoch});
    }
  }
  return keys;
}

absl::StatusOr<std::vector<int>> ListRanks(FileSystem& files, const std::string& attempt_dir) {
  std::vector<int> ranks;
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListOrNothing(files, attempt_dir));
  for (const std::string& name : names) {
    if (const std::optional<int64_t> rank = NumberAfter('r', name)) ranks.push_back(static_cast<int>(*rank));
  }
  return ranks;
}

}  // namespace slipway::worker::agent
