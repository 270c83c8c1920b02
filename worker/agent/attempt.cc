#include "worker/agent/attempt.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "worker/agent/rendezvous.h"
#include "worker/link/collective_board.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::agent {
namespace {

using slipway::v1::DesiredAssignment;
using slipway::worker::v1::WorkerLaunch;
using slipway::worker::v1::WorkerReport;

constexpr char kAssignmentFile[] = "assignment";
constexpr char kRendezvousFile[] = "rendezvous";
constexpr size_t kPreflightLogTail = 4000;

absl::Duration SystemMonotonicNow() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::DurationFromTimespec(now);
}

Phase PhaseOf(const DesiredAssignment& assignment) {
  switch (assignment.phase()) {
    case slipway::v1::DESIRED_PHASE_PREFLIGHT:
      return Phase::kPreflight;
    case slipway::v1::DESIRED_PHASE_RUN:
      return Phase::kRun;
    case slipway::v1::DESIRED_PHASE_STOPPED:
      return Phase::kStopped;
    default:
      return Phase::kUnknown;
  }
}

// The last frame, with what the report's file knows beyond it: the agent may have been away, or the socket broken.
WorkerReport Merge(WorkerReport frame, const WorkerReport& file) {
  if (file.state() > frame.state()) {
    frame.set_state(file.state());
    frame.set_phase(file.phase());
    frame.set_start_step(file.start_step());
    frame.set_resumed(file.resumed());
    frame.set_resumed_from_epoch(file.resumed_from_epoch());
    frame.set_spec_hash(file.spec_hash());
  }
  frame.set_step(std::max(frame.step(), file.step()));
  if (file.committed_size() > frame.committed_size()) *frame.mutable_committed() = file.committed();
  if (file.has_failed_save() && !frame.has_failed_save()) *frame.mutable_failed_save() = file.failed_save();
  if (frame.outcome() == slipway::v1::RANK_OUTCOME_UNSPECIFIED) {
    frame.set_outcome(file.outcome());
    *frame.mutable_cause() = file.cause();
  }
  return frame;
}

slipway::v1::PreflightResult FailedPreflight(const std::string& message) {
  slipway::v1::PreflightResult result;
  result.add_faults()->set_message(message);
  return result;
}

}  // namespace

Attempt::Attempt(AttemptKey key, const NodeContext& node)
    : key_(std::move(key)), node_(node), directory_(AttemptDirectory(node.state_dir, key_)) {
  desire_.preflight_timeout = node.preflight_timeout;
  LoadLeftOvers();
}

void Attempt::LoadLeftOvers() {
  FileSystem& files = *node_.files;
  if (const absl::StatusOr<std::string> bytes = files.ReadFile(JoinPath(directory_, kAssignmentFile)); bytes.ok()) {
    if (!assignment_.ParseFromString(*bytes)) spdlog::warn("{}: the assignment's file is broken", directory_);
  }
  rendezvous_address_ = files.ReadFile(JoinPath(directory_, kRendezvousFile)).value_or("");
  for (const int rank : ListRanks(files, directory_).value_or(std::vector<int>())) RankOf(rank);
  preflight_ = std::make_unique<ShimProcess>(PreflightDirectory(directory_), files, *node_.clock);
  JudgeAllEnded(/*recently_out_of_memory=*/false);
}

void Attempt::JudgeAllEnded(bool recently_out_of_memory) {
  for (auto& [number, rank] : ranks_) JudgeEnded(number, rank, recently_out_of_memory);
  TakePreflightResult();
}

Attempt::Rank& Attempt::RankOf(int number) {
  Rank& rank = ranks_[number];
  if (rank.process != nullptr) return rank;
  const std::string directory = RankDirectory(directory_, number);
  rank.process = std::make_unique<ShimProcess>(directory, *node_.files, *node_.clock);
  rank.reported_at = node_.clock->MonotonicNow();
  // What the worker said while no agent listened.
  if (absl::StatusOr<WorkerReport> report = link::ReadReport(*node_.files, directory); report.ok()) {
    rank.report = *std::move(report);
  }
  rank.report.set_rank(number);
  if (rank.process->life() == Life::kAlive) spdlog::info("{}: found rank {} running", ToText(key_), number);
  return rank;
}

void Attempt::SetDesired(const DesiredAssignment* assignment) {
  if (assignment == nullptr) {
    desire_.phase = Phase::kReleased;
    return;
  }
  desire_.phase = PhaseOf(*assignment);
  desire_.termination_grace = absl::Seconds(std::max(0.0, assignment->termination_grace_seconds()));
  for (const slipway::v1::RankPlacement& placement : assignment->ranks()) RankOf(placement.rank());
  const std::string bytes = assignment->SerializeAsString();
  if (bytes == assignment_.SerializeAsString()) return;
  assignment_ = *assignment;
  absl::Status status = node_.files->MakeDirectories(directory_);
  if (status.ok()) status = node_.files->WriteFileAtomically(JoinPath(directory_, kAssignmentFile), bytes);
  if (!status.ok()) spdlog::error("{}: {}", ToText(key_), status.ToString());
}

bool Attempt::TakeReport(int number, const WorkerReport& report) {
  const auto it = ranks_.find(number);
  if (it == ranks_.end() || it->second.process->life() != Life::kAlive) return false;
  Rank& rank = it->second;
  if (rank.process->worker_pid() != 0 && rank.process->worker_pid() != report.pid()) {
    spdlog::warn("{}: process {} reports as rank {}, which is process {}", ToText(key_), report.pid(), number,
                 rank.process->worker_pid());
    return false;
  }
  rank.report = report;
  rank.report.clear_metrics();
  rank.reported_at = node_.clock->MonotonicNow();
  if (report.outcome() != slipway::v1::RANK_OUTCOME_UNSPECIFIED && !rank.said_outcome_at.has_value()) {
    rank.said_outcome_at = rank.reported_at;
  }
  return true;
}

WorkerHub::Control Attempt::ControlOf() const {
  return {.stop_requested = stop_asked_ || assignment_.stop_requested() || desire_.phase == Phase::kReleased,
          .checkpoint_requests = assignment_.checkpoint_requests()};
}

bool Attempt::Advance(bool lease_expired, bool recently_out_of_memory) {
  for (auto& [number, rank] : ranks_) rank.process->Poll();
  preflight_->Poll();
  JudgeAllEnded(recently_out_of_memory);
  desire_.lease_expired = lease_expired;
  for (const Step& step : Reconcile(desire_, Observation(), node_.clock->MonotonicNow())) Take(step);
  JudgeAllEnded(recently_out_of_memory);  // those that could not even start
  return !released_;
}

void Attempt::JudgeEnded(int number, Rank& rank, bool recently_out_of_memory) {
  if (rank.process->life() != Life::kEnded || rank.verdict.has_value()) return;
  if (const absl::StatusOr<WorkerReport> file = link::ReadReport(*node_.files, rank.process->state_dir()); file.ok()) {
    rank.report = Merge(std::move(rank.report), *file);
  }
  RankEnd end{.record = rank.process->record(),
              .shim_error = rank.process->shim_error(),
              .machine_restarted = rank.process->machine_restarted(),
              .report = rank.report,
              .killed = rank.process->killed(),
              .out_of_memory = recently_out_of_memory,
              .ended = node_.clock->WallNow(),
              .ended_monotonic = SystemMonotonicNow()};
  if (end.record.has_value() && end.record->unix_time_nanos() > 0) {
    end.ended = absl::FromUnixNanos(end.record->unix_time_nanos());
  }
  const std::string board = JoinPath(rank.process->state_dir(), link::kCollectiveFile);
  if (absl::StatusOr<link::CollectiveRecord> last = link::CollectiveBoard::Read(board); last.ok()) {
    end.collective = *std::move(last);
  }
  rank.verdict = Judge(end);
  rank.verdict->cause.set_node_id(node_.node_id);
  if (rank.verdict->outcome == slipway::v1::RANK_OUTCOME_FAULT) {
    spdlog::warn("{}: rank {} failed{}: {}", ToText(key_), number,
                 rank.verdict->cause.secondary() ? " after another one" : "", rank.verdict->cause.message());
  } else {
    spdlog::info("{}: rank {} {}", ToText(key_), number, slipway::v1::RankOutcome_Name(rank.verdict->outcome));
  }
}

void Attempt::TakePreflightResult() {
  if (preflight_->life() != Life::kEnded || preflight_result_.has_value()) return;
  absl::StatusOr<slipway::v1::PreflightResult> result =
      link::ReadPreflightResult(*node_.files, preflight_->state_dir());
  if (result.ok()) {
    preflight_result_ = *std::move(result);
    return;
  }
  std::string end = "ended without a result";
  if (preflight_->killed() == KillReason::kTimeout) {
    end = absl::StrCat("did not finish within ", absl::FormatDuration(node_.preflight_timeout));
  } else if (preflight_->killed() != KillReason::kNone) {
    end = "was ended";
  } else if (const auto& record = preflight_->record(); record.has_value()) {
    end = record->spawn_failed() ? absl::StrCat("could not be started: ", record->spawn_error())
          : record->signalled()  ? absl::StrCat("ended by signal ", record->signal())
                                 : absl::StrCat("ended with exit code ", record->exit_code(), " and no result");
  }
  std::string output =
      node_.files->ReadFile(JoinPath(preflight_->state_dir(), "output.log"), int64_t{16} << 20).value_or("");
  if (output.size() > kPreflightLogTail) output = output.substr(output.size() - kPreflightLogTail);
  std::replace_if(
      output.begin(), output.end(), [](char c) { return (c & 0x80) != 0; }, '?');  // a proto string is UTF-8
  preflight_result_ = FailedPreflight(absl::StrCat("the preflight on node ", node_.node_id, " ", end,
                                                   output.empty() ? "" : "; its output ends with:\n", output));
}

AttemptObservation Attempt::Observation() const {
  AttemptObservation observation{
      .preflight = preflight_->life(),
      .preflight_result = preflight_result_.has_value(),
      .preflight_started_at = preflight_->started_at(),
      .rendezvous_known = !rendezvous_address_.empty() || !assignment_.rendezvous_address().empty()};
  for (const auto& [number, rank] : ranks_) {
    const bool fault = rank.verdict.has_value() && rank.verdict->outcome == slipway::v1::RANK_OUTCOME_FAULT;
    observation.ranks.push_back({.rank = number,
                                 .life = rank.process->life(),
                                 .fault = fault,
                                 .secondary = fault && rank.verdict->cause.secondary(),
                                 .ended_at = rank.process->ended_at(),
                                 .said_outcome_at = rank.said_outcome_at,
                                 .terminated_at = rank.process->terminated_at()});
  }
  return observation;
}

void Attempt::Take(const Step& step) {
  switch (step.kind) {
    case StepKind::kStartPreflight:
      return StartPreflight();
    case StepKind::kKillPreflight:
      return preflight_->Kill(step.reason);
    case StepKind::kStartRank:
      return StartRank(step.rank);
    case StepKind::kTerminate:
      return ranks_.at(step.rank).process->Terminate();
    case StepKind::kKill:
      return ranks_.at(step.rank).process->Kill(step.reason);
    case StepKind::kRelease:
      return Release();
  }
}

absl::StatusOr<WorkerLaunch> Attempt::LaunchOf(int rank) const {
  SLIPWAY_RETURN_IF_ERROR(CheckAllowed(node_, assignment_.output_dir()));
  SLIPWAY_RETURN_IF_ERROR(CheckAllowed(node_, assignment_.checkpoint_dir()));
  return MakeLaunch(node_, assignment_, rank);
}

void Attempt::StartPreflight() {
  absl::StatusOr<WorkerLaunch> launch = LaunchOf(/*rank=*/-1);
  if (!launch.ok()) {
    preflight_result_ = FailedPreflight(std::string(launch.status().message()));
    return;
  }
  launch->set_state_dir(preflight_->state_dir());
  const std::string launch_file = JoinPath(preflight_->state_dir(), link::kLaunchFile);
  const absl::Status status =
      preflight_->Start(*launch, {.shim_binary = node_.shim_binary,
                                  .command = link::PreflightCommand(node_.worker_binary, launch_file),
                                  .environment = MakeEnvironment(node_, assignment_, -1),
                                  .log_path = JoinPath(preflight_->state_dir(), "output.log")});
  if (!status.ok()) preflight_result_ = FailedPreflight(std::string(status.message()));
}

void Attempt::StartRank(int number) {
  Rank& rank = ranks_.at(number);
  ShimProcess& process = *rank.process;
  Rendezvous rendezvous;
  absl::StatusOr<WorkerLaunch> launch = LaunchOf(number);
  absl::Status status = launch.status();
  if (status.ok() && number == 0) {
    if (absl::StatusOr<Rendezvous> bound = BindRendezvous(node_.rendezvous_ip); bound.ok()) {
      rendezvous = *std::move(bound);
      rendezvous_address_ = rendezvous.address;
      launch->set_rendezvous_fd(ShimProcess::kRendezvousFd);
      status = node_.files->WriteFileAtomically(JoinPath(directory_, kRendezvousFile), rendezvous_address_);
    } else {
      status = bound.status();
    }
  }
  if (!status.ok()) {
    process.RefuseToStart(status);
    return;
  }
  launch->set_rendezvous_address(rendezvous_address_.empty() ? assignment_.rendezvous_address() : rendezvous_address_);
  launch->set_state_dir(process.state_dir());
  const std::string launch_file = JoinPath(process.state_dir(), link::kLaunchFile);
  status = process.Start(*launch, {.shim_binary = node_.shim_binary,
                                   .command = link::RankCommand(node_.worker_binary, launch_file),
                                   .environment = MakeEnvironment(node_, assignment_, number),
                                   .log_path = LogPath(assignment_.output_dir(), key_.epoch, number),
                                   .rendezvous_fd = rendezvous.listener.get()});
  rank.reported_at = node_.clock->MonotonicNow();
  if (status.ok()) {
    spdlog::info("{}: started rank {}", ToText(key_), number);
  } else {
    spdlog::error("{}: rank {}: {}", ToText(key_), number, status.ToString());
  }
}

void Attempt::Release() {
  if (const absl::Status status = node_.files->RemoveTree(directory_); !status.ok()) {
    spdlog::warn("{}: {}", ToText(key_), status.ToString());
    return;  // tried again
  }
  spdlog::info("{}: released", ToText(key_));
  released_ = true;
}

slipway::v1::ObservedRank Attempt::ObserveRank(int number, const Rank& rank, bool with_ages) const {
  slipway::v1::ObservedRank observed;
  observed.set_rank(number);
  const WorkerReport& report = rank.report;
  observed.set_step(report.step());
  observed.set_start_step(report.start_step());
  observed.set_resumed(report.resumed());
  observed.set_resumed_from_epoch(report.resumed_from_epoch());
  observed.set_spec_hash(report.spec_hash());
  observed.set_phase(report.phase());
  if (rank.process->life() == Life::kAlive) {
    observed.set_state(report.state() == slipway::v1::RANK_STATE_UNSPECIFIED ? slipway::v1::RANK_STATE_STARTING
                                                                             : report.state());
    if (with_ages) {
      observed.set_heartbeat_age_seconds(absl::ToDoubleSeconds(node_.clock->MonotonicNow() - rank.reported_at));
    }
    return observed;
  }
  observed.set_state(slipway::v1::RANK_STATE_EXITED);
  if (rank.verdict.has_value()) {
    observed.set_outcome(rank.verdict->outcome);
    if (rank.verdict->outcome == slipway::v1::RANK_OUTCOME_FAULT) *observed.mutable_cause() = rank.verdict->cause;
  } else {  // absent, and it will never be started
    observed.set_outcome(slipway::v1::RANK_OUTCOME_FAULT);
    observed.mutable_cause()->set_cause_class(slipway::v1::CAUSE_CLASS_OPERATOR);
    observed.mutable_cause()->set_message("the attempt was stopped before this rank was started");
    observed.mutable_cause()->set_secondary(true);
    observed.mutable_cause()->set_rank(number);
    observed.mutable_cause()->set_node_id(node_.node_id);
  }
  return observed;
}

slipway::v1::ObservedAssignment Attempt::Observe(bool with_ages) const {
  slipway::v1::ObservedAssignment observed;
  observed.set_job_id(key_.job_id);
  observed.set_epoch(key_.epoch);
  observed.set_rendezvous_address(rendezvous_address_);
  const bool fault = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.verdict.has_value() && entry.second.verdict->outcome == slipway::v1::RANK_OUTCOME_FAULT;
  });
  for (const auto& [number, rank] : ranks_) {
    // A rank that is still to be started is not mentioned.
    if (rank.process->life() == Life::kAbsent && desire_.phase != Phase::kStopped && !fault) continue;
    *observed.add_ranks() = ObserveRank(number, rank, with_ages);
    if (number != 0) continue;
    *observed.mutable_committed_checkpoints() = rank.report.committed();
    if (rank.report.has_failed_save()) {
      *observed.mutable_failed_save() = rank.report.failed_save();
      observed.mutable_failed_save()->set_node_id(node_.node_id);
    }
  }
  if (preflight_result_.has_value()) *observed.mutable_preflight() = *preflight_result_;
  return observed;
}

int Attempt::AliveRanks() const {
  return static_cast<int>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second.process->life() == Life::kAlive; }));
}

bool Attempt::AnyAlive() const { return preflight_->life() == Life::kAlive || AliveRanks() > 0; }

std::vector<int> Attempt::Ranks() const {
  std::vector<int> numbers;
  for (const auto& entry : ranks_) numbers.push_back(entry.first);
  return numbers;
}

bool Attempt::MayPrint(int number) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    const Life life = entry.second.process->life();
    return (number < 0 || entry.first == number) &&
           (life == Life::kAlive || (life == Life::kAbsent && desire_.phase == Phase::kRun));
  });
}

}  // namespace slipway::worker::agent
