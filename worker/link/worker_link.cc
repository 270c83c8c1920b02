#include "worker/link/worker_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "spdlog/spdlog.h"
#include "worker/link/rank_files.h"
#include "worker/link/unix_socket.h"

namespace slipway::worker::link {
namespace {

constexpr size_t kMaxWaitingMetrics = 4096;
constexpr int kMaxMetricsPerReport = 512;
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// Fast steps do not make more reports than this.
constexpr absl::Duration kMinReportInterval = absl::Milliseconds(20);
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr absl::Duration kLastRetry = absl::Seconds(1);
// The longest sleep: the lease is watched on a clock that need not be the system's.
constexpr absl::Duration kMaxPoll = absl::Milliseconds(100);

}  // namespace

WorkerLink::Options WorkerLink::OptionsFrom(const v1::WorkerLaunch& launch) {
  Options options{.socket_path = launch.socket_path(),
                  .job_id = launch.job_id(),
                  .epoch = launch.epoch(),
                  .rank = launch.rank(),
                  .state_dir = launch.state_dir()};
  if (launch.lease_seconds() > 0) options.lease = absl::Seconds(launch.lease_seconds());
  return options;
}

WorkerLink::WorkerLink(Options options, const Clock& clock, FileSystem& files)
    : options_(std::move(options)),
      clock_(clock),
      files_(files),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_frame_(clock.MonotonicNow()) {
  {
    absl::MutexLock lock(&mutex_);
    report_.set_pid(::getpid());
    report_.set_job_id(options_.job_id);
    report_.set_epoch(options_.epoch);
    report_.set_rank(options_.rank);
    report_.set_state(slipway::v1::RANK_STATE_STARTING);
  }
  thread_ = std::thread([this] { Run(); });
}

WorkerLink::~WorkerLink() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    MarkChanged(/*urgent=*/true);
  }
  thread_.join();
}

void WorkerLink::MarkChanged(bool urgent) {
  ++change_;
  urgent_ = urgent_ || urgent;
  if (urgent) ++to_persist_;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void WorkerLink::SetPhase(std::string_view phase) {
  absl::MutexLock lock(&mutex_);
  report_.set_phase(std::string(phase));
  MarkChanged(/*urgent=*/false);
}

void WorkerLink::SetReady(int64_t start_step, bool resumed, int64_t resumed_from_epoch, std::string_view spec_hash) {
  absl::MutexLock lock(&mutex_);
  report_.set_state(slipway::v1::RANK_STATE_READY);
  report_.set_step(start_step);
  report_.set_start_step(start_step);
  report_.set_resumed(resumed);
  report_.set_resumed_from_epoch(resumed_from_epoch);
  report_.set_spec_hash(std::string(spec_hash));
  MarkChanged(/*urgent=*/true);
}

void WorkerLink::SetStep(int64_t step) {
  absl::MutexLock lock(&mutex_);
  const bool first = report_.state() != slipway::v1::RANK_STATE_RUNNING;
  report_.set_state(slipway::v1::RANK_STATE_RUNNING);
  report_.set_step(step);
  MarkChanged(/*urgent=*/first);
}

void WorkerLink::AddMetrics(slipway::v1::MetricRecord record) {
  absl::MutexLock lock(&mutex_);
  if (metrics_.size() == kMaxWaitingMetrics) metrics_.pop_front();
  metrics_.push_back(std::move(record));
  MarkChanged(/*urgent=*/false);
}

void WorkerLink::AddCommitted(slipway::v1::Checkpoint checkpoint) {
  absl::MutexLock lock(&mutex_);
  // The same one again says something new of it: a request that it answers, or that it was deleted.
  auto& known = *report_.mutable_committed();
  const auto it = std::find_if(known.begin(), known.end(), [&](const slipway::v1::Checkpoint& other) {
    return other.step() == checkpoint.step() && other.epoch() == checkpoint.epoch();
  });
  (it != known.end() ? *it : *known.Add()) = std::move(checkpoint);
  MarkChanged(/*urgent=*/true);
}

void WorkerLink::SetFailedSave(const slipway::v1::Cause& cause) {
  absl::MutexLock lock(&mutex_);
  *report_.mutable_failed_save() = cause;
  report_.mutable_failed_save()->set_message(ShortenCauseMessage(cause.message()));
  MarkChanged(/*urgent=*/true);
}

void WorkerLink::SetOutcome(slipway::v1::RankOutcome outcome, const slipway::v1::Cause& cause) {
  absl::MutexLock lock(&mutex_);
  report_.set_outcome(outcome);
  *report_.mutable_cause() = cause;
  report_.mutable_cause()->set_message(ShortenCauseMessage(cause.message()));
  MarkChanged(/*urgent=*/true);
}

bool WorkerLink::stop_requested() const {
  absl::MutexLock lock(&mutex_);
  return stop_requested_;
}

int64_t WorkerLink::checkpoint_requests() const {
  absl::MutexLock lock(&mutex_);
  return checkpoint_requests_;
}

bool WorkerLink::lease_expired() const {
  absl::MutexLock lock(&mutex_);
  return lease_expired_;
}

bool WorkerLink::WaitUntilSent(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &WorkerLink::AllKept), timeout);
}

void WorkerLink::Run() {
  while (true) {
    const absl::Duration now = clock_.MonotonicNow();
    if (connection_.channel == nullptr && now >= connection_.next_attempt) Connect(now);
    SendReport(now);
    ReceiveControls(now);
    PersistReport(now);
    CheckLease(clock_.MonotonicNow());
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    Poll();
  }
}

void WorkerLink::Connect(absl::Duration now) {
  absl::StatusOr<UniqueFd> socket = ConnectUnix(options_.socket_path);
  if (!socket.ok()) {
    Disconnect(now);
    return;
  }
  connection_.channel = std::make_unique<FrameChannel>(*std::move(socket));
  connection_.retry_delay = absl::ZeroDuration();
  last_send_ = -absl::InfiniteDuration();  // the whole report again, at once
}

void WorkerLink::Disconnect(absl::Duration now) {
  connection_.channel.reset();
  connection_.retry_delay = std::clamp(connection_.retry_delay * 2, kFirstRetry, kLastRetry);
  connection_.next_attempt = now + connection_.retry_delay;
  sending_change_ = -1;
  absl::MutexLock lock(&mutex_);
  sent_change_ = -1;
  for (auto it = in_flight_.rbegin(); it != in_flight_.rend(); ++it) metrics_.push_front(std::move(it->second));
  in_flight_.clear();
  while (metrics_.size() > kMaxWaitingMetrics) metrics_.pop_front();
}

bool WorkerLink::MetricsWait() const { return !metrics_.empty() && in_flight_.size() < kMaxWaitingMetrics; }

void WorkerLink::TakeMetrics(v1::WorkerReport& report) {
  while (report.metrics_size() < kMaxMetricsPerReport && MetricsWait()) {
    *report.add_metrics() = metrics_.front();
    in_flight_.emplace_back(report.sequence(), std::move(metrics_.front()));
    metrics_.pop_front();
  }
}

absl::Duration WorkerLink::SendDueIn(absl::Duration now) const {
  const bool changed = sending_change_ != change_ || MetricsWait();
  const absl::Duration interval = !changed ? kHeartbeat : urgent_ ? absl::ZeroDuration() : kMinReportInterval;
  return std::max(absl::ZeroDuration(), last_send_ + interval - now);
}

void WorkerLink::SendReport(absl::Duration now) {
  if (connection_.channel == nullptr) return;
  absl::Status status = connection_.channel->Flush();
  while (status.ok() && !connection_.channel->wants_write()) {
    v1::WorkerReport report;
    {
      absl::MutexLock lock(&mutex_);
      sent_change_ = sending_change_;
      if (SendDueIn(now) > absl::ZeroDuration()) return;
      report = report_;
      report.set_sequence(++sequence_);
      TakeMetrics(report);
      sending_change_ = change_;
      urgent_ = MetricsWait();  // more than one report takes: the next follows at once
    }
    last_send_ = now;
    status = connection_.channel->Send(report);
  }
  if (!status.ok()) Disconnect(now);
}

void WorkerLink::ReceiveControls(absl::Duration now) {
  if (connection_.channel == nullptr) return;
  std::vector<std::string> frames;
  const absl::Status status = connection_.channel->Receive(frames);
  for (const std::string& frame : frames) {
    v1::WorkerControl control;
    if (!control.ParseFromString(frame)) {
      spdlog::warn("a frame from the agent is not a WorkerControl; reconnecting");
      Disconnect(now);
      return;
    }
    last_frame_ = now;
    while (!in_flight_.empty() && in_flight_.front().first <= control.acknowledged_sequence()) in_flight_.pop_front();
    absl::MutexLock lock(&mutex_);
    stop_requested_ = control.stop_requested();
    checkpoint_requests_ = std::max(checkpoint_requests_, control.checkpoint_requests());
  }
  if (!status.ok()) Disconnect(now);
}

void WorkerLink::PersistReport(absl::Duration now) {
  if (options_.state_dir.empty() || now < next_persist_) return;
  v1::WorkerReport report;
  int64_t persisting = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (persisted_ == to_persist_) return;
    report = report_;
    persisting = to_persist_;
  }
  if (const absl::Status status = WriteReport(files_, options_.state_dir, report); !status.ok()) {
    spdlog::warn("the report's file: {}", status.ToString());
    next_persist_ = now + kHeartbeat;
    return;
  }
  absl::MutexLock lock(&mutex_);
  persisted_ = persisting;
}

void WorkerLink::CheckLease(absl::Duration now) {
  if (now - last_frame_ < options_.lease) return;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_expired_) return;
    lease_expired_ = true;
  }
  spdlog::error("no word from the agent for {}: the lease has run out", absl::FormatDuration(now - last_frame_));
  if (options_.on_lease_expired) options_.on_lease_expired();
}

void WorkerLink::Poll() {
  absl::Duration timeout = kMaxPoll;
  std::array<pollfd, 2> fds = {{{.fd = wake_.get(), .events = POLLIN}, {.fd = -1, .events = POLLIN}}};
  if (connection_.channel != nullptr) {
    fds[1].fd = connection_.channel->fd();
    if (connection_.channel->wants_write()) fds[1].events |= POLLOUT;
    absl::MutexLock lock(&mutex_);
    timeout = std::min(timeout, SendDueIn(clock_.MonotonicNow()));
  } else {
    timeout = std::min(timeout, kFirstRetry);
  }
  const auto milliseconds = static_cast<int>(absl::ToInt64Milliseconds(timeout + absl::Microseconds(999)));
  ::poll(fds.data(), fds.size(), milliseconds);
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof(wakes));
}

}  // namespace slipway::worker::link
