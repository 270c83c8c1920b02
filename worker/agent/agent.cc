#include "worker/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace slipway::worker::agent {
namespace {

constexpr int kTurnMilliseconds = 50;
constexpr absl::Duration kPublishInterval = absl::Milliseconds(200);
// Also without a change, so that heartbeat ages stay fresh.
constexpr absl::Duration kRepeatInterval = absl::Seconds(5);
constexpr absl::Duration kStopTimeout = absl::Minutes(5);
constexpr absl::Duration kFlushTimeout = absl::Seconds(3);

}  // namespace

void Agent::Post(Mail mail) {
  {
    absl::MutexLock lock(&mutex_);
    inbox_.push_back(std::move(mail));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void Agent::Run() {
  while (!Finished()) {
    Wait();
    figures_.last_turn_nanos = absl::ToInt64Nanoseconds(clock_.MonotonicNow());
    HandleSignals();
    HandleMail();
    hub_->Serve();
    WatchLease();
    oom_.Poll();
    AdvanceAttempts();
    Publish(/*at_once=*/false);
    UpdateFigures();
  }
  if (AnyAlive()) spdlog::info("leaving; the workers go on");
  Publish(/*at_once=*/true);
  session_->Flush(kFlushTimeout);
}

void Agent::Wait() {
  std::vector<pollfd> fds = {{.fd = signals_.get(), .events = POLLIN}, {.fd = wake_.get(), .events = POLLIN}};
  hub_->AddPollFds(fds);
  ::poll(fds.data(), fds.size(), kTurnMilliseconds);
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof(wakes));
}

void Agent::HandleSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (!options_.local) {
      leave_now_ = true;
    } else if (stopping_since_.has_value()) {
      kill_now_ = true;
    } else {
      StopWorkers(absl::StrCat("signal ", info.ssi_signo));
    }
  }
}

void Agent::StopWorkers(const std::string& reason) {
  if (stopping_since_.has_value()) return;
  stopping_since_ = clock_.MonotonicNow();
  spdlog::info("stopping ({}){}", reason, AnyAlive() ? ": workers save a checkpoint and leave" : "");
  for (auto& [key, attempt] : attempts_) attempt->AskToStop();
}

void Agent::HandleMail() {
  std::deque<Mail> mails;
  {
    absl::MutexLock lock(&mutex_);
    mails.swap(inbox_);
  }
  for (const Mail& mail : mails) {
    if (const auto* message = std::get_if<slipway::v1::CoordinatorMessage>(&mail)) {
      Handle(*message);
    } else {
      welcomed_ = false;
      logs_->CancelAll();
    }
  }
}

void Agent::Handle(const slipway::v1::CoordinatorMessage& message) {
  lease_->Renew();
  switch (message.message_case()) {
    case slipway::v1::CoordinatorMessage::kWelcome: {
      const slipway::v1::AgentWelcome& welcome = message.welcome();
      lease_->SetDuration(absl::Seconds(welcome.lease_seconds()));
      if (welcome.heartbeat_seconds() > 0) heartbeat_interval_ = absl::Seconds(welcome.heartbeat_seconds());
      if (welcome.worker_lease_seconds() > 0) node_.worker_lease = absl::Seconds(welcome.worker_lease_seconds());
      FindRendezvousAddress();
      welcomed_ = true;
      applied_revision_ = 0;
      ++figures_.connections_total;
      spdlog::info("connected to the coordinator at {} as {}", options_.coordinator, node_.node_id);
      Publish(/*at_once=*/true);
      break;
    }
    case slipway::v1::CoordinatorMessage::kDesired:
      Apply(message.desired());
      break;
    case slipway::v1::CoordinatorMessage::kLogRead:
      logs_->Start(message.log_read());
      break;
    case slipway::v1::CoordinatorMessage::kLogReadCancel:
      logs_->Cancel(message.log_read_cancel().read_id());
      break;
    default:
      break;  // a lease renewal says nothing more; what a newer coordinator may say is not for us
  }
}

void Agent::Apply(const slipway::v1::DesiredState& desired) {
  std::set<AttemptKey> listed;
  for (const slipway::v1::DesiredAssignment& assignment : desired.assignments()) {
    if (const absl::Status valid = ValidateJobId(assignment.job_id()); !valid.ok() || assignment.epoch() <= 0) {
      spdlog::error("an assignment of epoch {} is refused: {}", assignment.epoch(), valid.ToString());
      continue;
    }
    const AttemptKey key{assignment.job_id(), assignment.epoch()};
    listed.insert(key);
    std::unique_ptr<Attempt>& attempt = attempts_[key];
    if (attempt == nullptr) {
      attempt = std::make_unique<Attempt>(key, node_);
      if (stopping_since_.has_value()) attempt->AskToStop();
    }
    attempt->SetDesired(&assignment);
    logs_->Remember(key.job_id, assignment.output_dir());
  }
  for (auto& [key, attempt] : attempts_) {
    if (!listed.contains(key)) attempt->SetDesired(nullptr);
  }
  AdvanceAttempts();
  // The observation shows what this revision has led to; only then is it said to be applied.
  applied_revision_ = desired.revision();
  Publish(/*at_once=*/true);
  session_->Heartbeat(applied_revision_);
}

bool Agent::TakeReport(const RankKey& key, const slipway::worker::v1::WorkerReport& report) {
  const auto it = attempts_.find(key.attempt);
  if (it == attempts_.end() || !it->second->TakeReport(key.rank, report)) return false;
  if (report.metrics_size() > 0) {
    slipway::v1::MetricBatch batch;
    batch.set_job_id(key.attempt.job_id);
    batch.set_epoch(key.attempt.epoch);
    *batch.mutable_records() = report.metrics();
    session_->AddMetrics(std::move(batch));
  }
  return true;
}

void Agent::WatchLease() {
  if (!lease_->StopDue()) {
    lease_stop_logged_ = false;
    return;
  }
  const std::string reason = absl::StrCat("no word from the coordinator for ",
                                          absl::FormatDuration(absl::Trunc(lease_->Silence(), absl::Seconds(1))));
  if (options_.orphan_timeout.has_value()) return StopWorkers(reason);
  if (!std::exchange(lease_stop_logged_, true)) spdlog::error("{}: the lease has run out, workers must leave", reason);
  for (auto& [key, attempt] : attempts_) attempt->AskToStop();
}

void Agent::AdvanceAttempts() {
  if (stopping_since_.has_value() && clock_.MonotonicNow() - *stopping_since_ >= kStopTimeout) kill_now_ = true;
  const bool kill = kill_now_ || lease_->KillDue();
  std::vector<std::pair<RankKey, bool>> may_print;
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    Attempt& attempt = *it->second;
    if (!attempt.Advance(kill, oom_.Recently())) {
      it = attempts_.erase(it);
      continue;
    }
    for (const int rank : attempt.Ranks()) may_print.push_back({{it->first, rank}, attempt.MayPrint(rank)});
    ++it;
  }
  absl::MutexLock lock(&mutex_);
  may_print_ = std::move(may_print);
}

bool Agent::MayPrint(const std::string& job_id, int64_t epoch, int rank) {
  absl::MutexLock lock(&mutex_);
  return std::any_of(may_print_.begin(), may_print_.end(), [&](const std::pair<RankKey, bool>& entry) {
    return entry.second && entry.first.attempt == AttemptKey{job_id, epoch} && (rank < 0 || entry.first.rank == rank);
  });
}

void Agent::Publish(bool at_once) {
  const absl::Duration now = clock_.MonotonicNow();
  if (!welcomed_) return;
  if (at_once || now - published_at_ >= kPublishInterval) {
    slipway::v1::ObservedState state;
    for (const auto& [key, attempt] : attempts_) *state.add_assignments() = attempt->Observe(/*with_ages=*/false);
    std::string bytes = state.SerializeAsString();
    if (at_once || bytes != published_ || now - published_at_ >= kRepeatInterval) {
      state.clear_assignments();
      for (const auto& [key, attempt] : attempts_) *state.add_assignments() = attempt->Observe(/*with_ages=*/true);
      state.set_sequence(++observed_sequence_);
      session_->SetObserved(std::move(state));
      published_ = std::move(bytes);
      published_at_ = now;
    }
  }
  if (now - last_heartbeat_ >= heartbeat_interval_) {
    last_heartbeat_ = now;
    session_->Heartbeat(applied_revision_);
  }
}

void Agent::UpdateFigures() {
  figures_.connected = session_->connected();
  figures_.metric_batches_dropped_total = session_->dropped_metric_batches();
  figures_.coordinator_silence_milliseconds = absl::ToInt64Milliseconds(lease_->Silence());
  int64_t running = 0;
  for (const auto& [key, attempt] : attempts_) running += attempt->AliveRanks();
  figures_.ranks_running = running;
}

bool Agent::AnyAlive() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& entry) { return entry.second->AnyAlive(); });
}

bool Agent::Finished() { return leave_now_ || (stopping_since_.has_value() && !AnyAlive()); }

}  // namespace slipway::worker::agent
