// jobs logs.
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/exit_code.h"
#include "client/job_text.h"
#include "common/flag_range.h"
#include "common/status_macros.h"

namespace slipway::client {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

struct LogFlags {
  std::string job;
  bool follow = false;
  int64_t tail = 0;
  std::optional<int> rank;
  std::string attempt;
};

// What --attempt says: the newest attempt, all of them, or one.
struct Wanted {
  bool all = false;
  std::optional<int64_t> epoch;
};

absl::StatusOr<Wanted> WantedAttempts(const std::string& text) {
  if (text.empty()) return Wanted{};
  if (text == "all") return Wanted{.all = true};
  int64_t epoch = 0;
  if (!absl::SimpleAtoi(text, &epoch) || epoch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--attempt ", text, ": expected a number from 1 on, or all"));
  }
  return Wanted{.epoch = epoch};
}

// Writes chunks. As text: of several ranks with their rank at each line's start, of one rank the bytes as they are. For
// programs: a record a line.
class LogWriter {
 public:
  LogWriter(const Command& command, bool prefixed) : command_(command), prefixed_(prefixed) {}

  void Write(int64_t epoch, int rank, const std::string& data) {
    if (!command_.is_table()) return WriteRecords(epoch, rank, data);
    if (!prefixed_) return command_.Print(data);
    std::string text;
    if (!at_line_start_ && rank != rank_) {
      text += "\n";
      at_line_start_ = true;
    }
    rank_ = rank;
    for (const char c : data) {
      if (at_line_start_) absl::StrAppend(&text, "[rank ", rank, "] ");
      at_line_start_ = c == '\n';
      text.push_back(c);
    }
    command_.Print(text);
  }

  // Lines that the end of a log left without an end of their own.
  void Flush() {
    for (const auto& [from, line] : std::exchange(unfinished_, {})) {
      if (!line.empty()) EmitLine(from.first, from.second, line);
    }
  }

 private:
  void WriteRecords(int64_t epoch, int rank, const std::string& data) {
    std::string& line = unfinished_[{epoch, rank}];
    for (const char c : data) {
      if (c != '\n') {
        line.push_back(c);
        continue;
      }
      EmitLine(epoch, rank, line);
      line.clear();
    }
  }
  void EmitLine(int64_t epoch, int rank, const std::string& line) {
    command_.EmitPart({{"epoch", epoch}, {"rank", rank}, {"line", line}});
  }

  const Command& command_;
  const bool prefixed_;
  int rank_ = -1;
  bool at_line_start_ = true;
  std::map<std::pair<int64_t, int>, std::string> unfinished_;
};

// The logs of one job, attempt by attempt.
class LogReading {
 public:
  LogReading(const Command& command, Connection& connection, const v1::Job& job, const LogFlags& flags)
      : command_(command), connection_(connection), flags_(flags), writer_(command, IsPrefixed(job, flags)) {}

  // An attempt that died before it printed anything has no log; that is said and is no error.
  absl::Status Read(const v1::Job& job, int64_t epoch, bool follow) {
    v1::StreamLogsRequest request;
    request.set_job(job.id());
    request.set_epoch(epoch);
    request.set_follow(follow);
    request.set_tail_lines(flags_.tail);
    if (flags_.rank) request.set_rank(*flags_.rank);
    grpc::ClientContext context;
    // Ctrl-C, or a reader that leaves, must also end a stream that says nothing.
    std::atomic<bool> done{false};
    std::thread canceller([&] {
      while (!done && !connection_.interrupted()) absl::SleepFor(kPoll);
      if (!done) context.TryCancel();
    });
    auto stream = connection_.logs().StreamLogs(&context, request);
    v1::StreamLogsResponse chunk;
    bool is_empty = true;
    while (stream->Read(&chunk)) {
      is_empty = false;
      writer_.Write(chunk.epoch(), chunk.rank(), chunk.data());
      if (command_.stopped()) context.TryCancel();
    }
    const absl::Status status = connection_.Named(stream->Finish());
    done = true;
    canceller.join();
    writer_.Flush();
    if (command_.stopped()) return absl::CancelledError("interrupted");
    if (status.ok() && is_empty) command_.Say(absl::StrCat("attempt ", epoch, " has no log"));
    return status;
  }

  // The same where an attempt may have had fewer ranks than the one that is asked for.
  absl::Status ReadIfThere(const v1::Job& job, int64_t epoch, bool follow) {
    const absl::Status status = Read(job, epoch, follow);
    if (!absl::IsNotFound(status)) return status;
    command_.Say(std::string(status.message()));
    return absl::OkStatus();
  }

  // Every attempt after `epoch`, those to come as well, until the job has ended or pauses.
  absl::StatusOr<int> FollowAfter(const std::string& id, int64_t epoch) {
    while (true) {
      SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(connection_, id));
      bool news = false;
      for (const v1::Attempt& attempt : job.attempts()) {
        if (attempt.epoch() <= epoch) continue;
        epoch = attempt.epoch();
        news = true;
        SLIPWAY_RETURN_IF_ERROR(ReadIfThere(job, epoch, /*follow=*/true));
      }
      if (!news && (IsFinal(job.state()) || job.state() == v1::JOB_STATE_PAUSED)) return ExitCodeOf(job.state());
      if (command_.stopped()) return kExitInterrupted;
      if (!news) absl::SleepFor(kPoll);
    }
  }

  // The job's exit code once it has ended or pauses, or went on with a newer attempt.
  absl::StatusOr<int> AwaitEnd(const std::string& id, int64_t epoch) {
    while (!command_.stopped()) {
      SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(connection_, id));
      const bool newer = !job.attempts().empty() && job.attempts(job.attempts_size() - 1).epoch() > epoch;
      if (newer || IsFinal(job.state()) || job.state() == v1::JOB_STATE_PAUSED) return ExitCodeOf(job.state());
      absl::SleepFor(kPoll);
    }
    return kExitInterrupted;
  }

 private:
  static bool IsPrefixed(const v1::Job& job, const LogFlags& flags) {
    bool several = job.attempts().empty();  // those to come may have any number of ranks
    for (const v1::Attempt& attempt : job.attempts()) several |= attempt.world_size() > 1;
    return several && !flags.rank;
  }

  const Command& command_;
  Connection& connection_;
  const LogFlags& flags_;
  LogWriter writer_;
};

absl::StatusOr<int> Logs(const Command& command, const LogFlags& flags) {
  SLIPWAY_ASSIGN_OR_RETURN(const Wanted wanted, WantedAttempts(flags.attempt));
  SLIPWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, command.Connect());
  SLIPWAY_ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, flags.job));
  LogReading reading(command, *connection, job, flags);
  const int64_t newest = job.attempts().empty() ? 0 : job.attempts(job.attempts_size() - 1).epoch();
  if (wanted.epoch) {
    SLIPWAY_RETURN_IF_ERROR(reading.Read(job, *wanted.epoch, flags.follow));
    if (!flags.follow) return kExitOk;
    return reading.AwaitEnd(job.id(), *wanted.epoch);
  }
  if (flags.follow) return reading.FollowAfter(job.id(), wanted.all ? 0 : newest - 1);
  if (newest == 0) {
    command.Say(absl::StrCat(job.id(), " is ", StateText(job.state()), " and has not been started yet: no logs"));
    return kExitOk;
  }
  if (!wanted.all) {
    SLIPWAY_RETURN_IF_ERROR(reading.Read(job, newest, /*follow=*/false));
    return kExitOk;
  }
  for (const v1::Attempt& attempt : job.attempts()) {
    SLIPWAY_RETURN_IF_ERROR(reading.ReadIfThere(job, attempt.epoch(), /*follow=*/false));
  }
  return kExitOk;
}

}  // namespace

void AddJobLogCommand(CLI::App* jobs, Command* command) {
  const auto flags = std::make_shared<LogFlags>();
  CLI::App* logs = jobs->add_subcommand("logs", "What the workers printed");
  logs->add_option("job", flags->job, "Id or name")->required();
  logs->add_flag("-f,--follow", flags->follow, "Go on until the job ends or pauses, through restarts");
  logs->add_option("--tail", flags->tail, "Start with the last lines")->check(WholeNumberIn(0))->type_name("LINES");
  logs->add_option("--rank", flags->rank, "Only this rank, as it printed")
      ->check(WholeNumberIn(0, std::numeric_limits<int>::max()))
      ->type_name("RANK");
  logs->add_option("--attempt", flags->attempt, "Attempt by number, or all [the newest]")->type_name("EPOCH");
  command->Run(
      logs, [=] { return Logs(*command, *flags); }, Outputs::kNoNames);
}

}  // namespace slipway::client
