#include "worker/link/rank_files.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::worker::link {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

absl::Status WriteMessage(FileSystem& files, const std::string& path, const google::protobuf::MessageLite& message) {
  std::string bytes;
  if (!message.SerializeToString(&bytes)) return absl::InternalError(absl::StrCat("cannot serialize ", path));
  return files.WriteFileAtomically(path, bytes);
}

template <typename Message>
absl::StatusOr<Message> ReadMessage(FileSystem& files, const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(const std::string bytes, files.ReadFile(path, kMaxFileBytes));
  Message message;
  if (!message.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat(path, " does not hold a ", message.GetTypeName()));
  }
  return message;
}

// Changes with each start of the machine (random(4)).
std::string BootId() {
  constexpr size_t kUuidLength = 36;
  const std::string path = "/proc/sys/kernel/random/boot_id";
  std::string text(kUuidLength, '\0');
  // /proc files have no size, so FileSystem's readers cannot read them.
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr || std::fread(text.data(), 1, text.size(), file.get()) != text.size()) return "unknown";
  return text;
}

}  // namespace

std::vector<std::string> RankCommand(const std::string& worker_binary, const std::string& launch_file) {
  return {worker_binary, "run", "--launch", launch_file};
}

std::vector<std::string> PreflightCommand(const std::string& worker_binary, const std::string& launch_file) {
  return {worker_binary, "preflight", "--launch", launch_file};
}

std::string ShortenCauseMessage(std::string_view message) {
  if (message.size() <= kMaxCauseMessageBytes) return std::string(message);
  constexpr std::string_view kGap = "\n… (shortened) …\n";
  constexpr size_t kPart = (kMaxCauseMessageBytes - kGap.size()) / 2;
  size_t head = kPart;
  while (head > 0 && (message[head] & 0xC0) == 0x80) --head;  // not inside a UTF-8 character
  size_t tail = message.size() - kPart;
  while (tail < message.size() && (message[tail] & 0xC0) == 0x80) ++tail;
  std::string shortened(message.substr(0, head));
  return shortened.append(kGap).append(message.substr(tail));
}

absl::Status WriteLaunch(FileSystem& files, const std::string& path, const v1::WorkerLaunch& launch) {
  return WriteMessage(files, path, launch);
}

absl::StatusOr<v1::WorkerLaunch> ReadLaunch(FileSystem& files, const std::string& path) {
  return ReadMessage<v1::WorkerLaunch>(files, path);
}

absl::Status WriteOutcome(FileSystem& files, const std::string& state_dir, const v1::WorkerOutcome& outcome) {
  return WriteMessage(files, JoinPath(state_dir, kOutcomeFile), outcome);
}

absl::StatusOr<v1::WorkerOutcome> ReadOutcome(FileSystem& files, const std::string& state_dir) {
  return ReadMessage<v1::WorkerOutcome>(files, JoinPath(state_dir, kOutcomeFile));
}

absl::Status WriteExitRecord(FileSystem& files, const std::string& state_dir, const v1::ExitRecord& record) {
  return WriteMessage(files, JoinPath(state_dir, kExitFile), record);
}

absl::StatusOr<v1::ExitRecord> ReadExitRecord(FileSystem& files, const std::string& state_dir) {
  return ReadMessage<v1::ExitRecord>(files, JoinPath(state_dir, kExitFile));
}

absl::Status WriteReport(FileSystem& files, const std::string& state_dir, const v1::WorkerReport& report) {
  return WriteMessage(files, JoinPath(state_dir, kReportFile), report);
}

absl::StatusOr<v1::WorkerReport> ReadReport(FileSystem& files, const std::string& state_dir) {
  return ReadMessage<v1::WorkerReport>(files, JoinPath(state_dir, kReportFile));
}

absl::Status WritePreflightResult(FileSystem& files, const std::string& state_dir,
                                  const slipway::v1::PreflightResult& result) {
  return WriteMessage(files, JoinPath(state_dir, kPreflightFile), result);
}

absl::StatusOr<slipway::v1::PreflightResult> ReadPreflightResult(FileSystem& files, const std::string& state_dir) {
  return ReadMessage<slipway::v1::PreflightResult>(files, JoinPath(state_dir, kPreflightFile));
}

absl::Status WriteShimRecord(FileSystem& files, const std::string& state_dir, const ShimRecord& record) {
  const nlohmann::json json = {{"boot_id", BootId()},
                               {"shim_pid", record.shim.pid},
                               {"shim_start_ticks", record.shim.start_ticks},
                               {"worker_pid", record.worker.pid},
                               {"worker_start_ticks", record.worker.start_ticks}};
  return files.WriteFileAtomically(JoinPath(state_dir, kShimFile), json.dump(2) + "\n");
}

absl::StatusOr<ShimRecord> ReadShimRecord(FileSystem& files, const std::string& state_dir) {
  const std::string path = JoinPath(state_dir, kShimFile);
  SLIPWAY_ASSIGN_OR_RETURN(const std::string text, files.ReadFile(path, kMaxFileBytes));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [&](const char* key) { return json.contains(key) && json[key].is_number_unsigned(); };
  if (!json.is_object() || !json.contains("boot_id") || !json["boot_id"].is_string() || !is_number("shim_pid") ||
      !is_number("shim_start_ticks") || !is_number("worker_pid") || !is_number("worker_start_ticks")) {
    return absl::DataLossError(absl::StrCat(path, " is not a shim's record"));
  }
  if (json["boot_id"].get<std::string>() != BootId()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is from before the machine's last start"));
  }
  return ShimRecord{.shim = {json["shim_pid"].get<pid_t>(), json["shim_start_ticks"].get<uint64_t>()},
                    .worker = {json["worker_pid"].get<pid_t>(), json["worker_start_ticks"].get<uint64_t>()}};
}

}  // namespace slipway::worker::link
