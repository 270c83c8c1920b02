#include "worker/agent/log_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "spdlog/spdlog.h"
#include "worker/agent/attempt_key.h"

namespace slipway::worker::agent {
namespace {

constexpr size_t kChunkBytes = 64 * 1024;
constexpr absl::Duration kFollowInterval = absl::Milliseconds(100);

// "e3" -> 3, "rank2.log" -> 2.
std::optional<int64_t> NumberIn(const std::string& name, const std::string& prefix, const std::string& suffix) {
  int64_t number = 0;
  if (name.size() <= prefix.size() + suffix.size() || name.compare(0, prefix.size(), prefix) != 0 ||
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0 ||
      !absl::SimpleAtoi(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()), &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

LogService::LogService(std::string state_dir, Send send, MayGrow may_grow)
    : state_dir_(std::move(state_dir)), send_(std::move(send)), may_grow_(std::move(may_grow)) {
  thread_ = std::thread([this] { Run(); });
}

LogService::~LogService() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::string LogService::IndexPath(const std::string& job_id) const {
  return absl::StrCat(state_dir_, "/logs/", job_id);
}

void LogService::Remember(const std::string& job_id, const std::string& output_dir) {
  PosixFileSystem files;
  const std::string path = IndexPath(job_id);
  if (files.ReadFile(path).value_or("") == output_dir) return;
  absl::Status status = files.MakeDirectories(DirName(path));
  if (status.ok()) status = files.WriteFileAtomically(path, output_dir);
  if (!status.ok()) spdlog::warn("{}", status.ToString());
}

void LogService::Start(const slipway::v1::LogRead& read) {
  absl::MutexLock lock(&mutex_);
  started_.push_back(read);
}

void LogService::Cancel(int64_t read_id) {
  absl::MutexLock lock(&mutex_);
  cancelled_.push_back(read_id);
}

void LogService::CancelAll() {
  absl::MutexLock lock(&mutex_);
  started_.clear();
  cancel_all_ = true;
}

void LogService::Run() {
  bool busy = false;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto awake = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || cancel_all_ || !started_.empty() || !cancelled_.empty();
      };
      if (!busy) {
        mutex_.AwaitWithTimeout(absl::Condition(&awake), reads_.empty() ? absl::InfiniteDuration() : kFollowInterval);
      }
      if (stopping_) return;
      if (std::exchange(cancel_all_, false)) reads_.clear();
      for (slipway::v1::LogRead& read : started_) reads_.push_back({.request = std::move(read)});
      started_.clear();
      for (const int64_t id : std::exchange(cancelled_, {})) {
        reads_.remove_if([&](const ActiveRead& read) { return read.request.read_id() == id; });
      }
    }
    busy = false;
    for (ActiveRead& read : reads_) busy = Serve(read) || busy;
    reads_.remove_if([](const ActiveRead& read) { return read.done; });
  }
}

void LogService::Open(ActiveRead& read) {
  read.opened = true;
  PosixFileSystem files;
  slipway::v1::LogRead& request = read.request;
  if (const absl::Status valid = ValidateJobId(request.job_id()); !valid.ok()) {
    read.error = std::string(valid.message());
    return;
  }
  const std::string output_dir = files.ReadFile(IndexPath(request.job_id())).value_or("");
  if (output_dir.empty()) {
    read.error = absl::StrCat("this node has never run job ", request.job_id());
    return;
  }
  read.logs_dir = output_dir + "/logs";
  if (request.epoch() == 0) {  // the newest
    for (const std::string& name : files.List(read.logs_dir).value_or(std::vector<std::string>())) {
      request.set_epoch(std::max(request.epoch(), NumberIn(name, "e", "").value_or(0)));
    }
  }
  AddSources(read);  // none for a rank that died before it printed anything: an empty log, not an error
}

// Also called while following: ranks may begin to print later.
void LogService::AddSources(ActiveRead& read) {
  PosixFileSystem files;
  const std::string directory = absl::StrCat(read.logs_dir, "/e", read.request.epoch());
  for (const std::string& name : files.List(directory).value_or(std::vector<std::string>())) {
    const std::optional<int64_t> rank = NumberIn(name, "rank", ".log");
    if (!rank.has_value() || (read.request.has_rank() && read.request.rank() != *rank)) continue;
    const bool known = std::any_of(read.sources.begin(), read.sources.end(),
                                   [&](const Source& source) { return source.rank == *rank; });
    if (known) continue;
    read.sources.push_back({.epoch = read.request.epoch(),
                            .rank = static_cast<int>(*rank),
                            .reader = LogReader(JoinPath(directory, name), read.request.tail_lines())});
  }
}

bool LogService::Serve(ActiveRead& read) {
  if (!read.opened) Open(read);
  if (!read.error.empty()) return SendEnd(read);
  const slipway::v1::LogRead& request = read.request;
  const int rank = request.has_rank() ? request.rank() : -1;
  // Asked before reading: what was printed until now is then surely read.
  const bool may_grow = request.follow() && may_grow_(request.job_id(), request.epoch(), rank);
  if (may_grow) AddSources(read);
  bool sent = false;
  for (Source& source : read.sources) {
    if (read.may_grow) source.ended = false;  // as of the round before: what it printed last is still to be read
    if (source.ended) continue;
    sent = ServeSource(read, source) || sent;
    if (!request.follow() && !source.ended) break;  // one rank after the other
  }
  read.may_grow = may_grow;
  const bool all_read = std::all_of(read.sources.begin(), read.sources.end(), [](const Source& s) { return s.ended; });
  if (all_read && !may_grow) return SendEnd(read);
  return sent;
}

bool LogService::ServeSource(ActiveRead& read, Source& source) {
  slipway::v1::LogChunk chunk;
  chunk.set_read_id(read.request.read_id());
  chunk.set_epoch(source.epoch);
  chunk.set_rank(source.rank);
  if (source.unsent.empty()) {
    absl::StatusOr<std::string> data = source.reader.Read(kChunkBytes);
    if (!data.ok()) {
      read.error = std::string(data.status().message());
      return true;
    }
    source.unsent = *std::move(data);
  }
  if (source.unsent.empty()) {
    source.ended = true;
    return false;
  }
  chunk.set_data(source.unsent);
  if (!send_(chunk)) return false;
  source.unsent.clear();
  return true;
}

bool LogService::SendEnd(ActiveRead& read) {
  slipway::v1::LogChunk chunk;
  chunk.set_read_id(read.request.read_id());
  chunk.set_epoch(read.request.epoch());
  chunk.set_rank(read.request.rank());
  chunk.set_end(true);
  chunk.set_error(read.error);
  read.done = send_(chunk);
  return read.done;
}

}  // namespace slipway::worker::agent
