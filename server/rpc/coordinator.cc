#include "server/rpc/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/timestamp.h"
#include "server/core/describe.h"
#include "server/core/desired.h"
#include "server/core/step.h"
#include "server/rpc/rich_status.h"
#include "server/store/job_record.h"
#include "spdlog/spdlog.h"

namespace slipway::server::rpc {
namespace {

constexpr size_t kRoundLimit = 512;     // pieces of work in one commit
constexpr size_t kRecentEvents = 4096;  // kept in memory for watchers
constexpr absl::Duration kRetryInterval = absl::Seconds(1);
constexpr absl::Duration kLastMetrics = absl::Seconds(1);  // a stream of metrics ends so long after its job

}  // namespace

absl::StatusOr<std::string> Coordinator::Turn::Resolve(const std::string& id_or_name) const {
  if (id_or_name.empty()) return WithReason(absl::InvalidArgumentError("job: is empty"), "JOB_REQUIRED");
  if (state().jobs.contains(id_or_name)) return id_or_name;
  std::vector<std::string> ids;
  for (const auto& [id, entry] : state().jobs) {
    if (entry.job.name() == id_or_name) ids.push_back(id);
  }
  if (ids.size() == 1) return ids[0];
  if (ids.empty()) {
    return WithReason(absl::NotFoundError(absl::StrCat("there is no job with the id or name \"", id_or_name, "\"")),
                      "JOB_NOT_FOUND", {{"job", id_or_name}});
  }
  return WithReason(absl::InvalidArgumentError(absl::StrCat(ids.size(), " jobs are named \"", id_or_name,
                                                            "\"; give an id, the newest is ", ids.back())),
                    "JOB_NAME_AMBIGUOUS", {{"job", id_or_name}});
}

v1::Job Coordinator::Turn::Describe(const std::string& id, bool with_history) const {
  return core::Describe(state(), state().jobs.at(id), now_, with_history);
}

absl::StatusOr<std::vector<v1::JobEvent>> Coordinator::Turn::EventsAfter(int64_t revision, size_t limit) const {
  const std::deque<v1::JobEvent>& recent = coordinator_.recent_;
  const bool in_memory = revision >= state().revision || (!recent.empty() && revision + 1 >= recent.front().revision());
  if (!in_memory) return coordinator_.store_->EventsAfter(revision, limit);
  auto it = std::lower_bound(recent.begin(), recent.end(), revision + 1,
                             [](const v1::JobEvent& event, int64_t wanted) { return event.revision() < wanted; });
  std::vector<v1::JobEvent> events;
  for (; it != recent.end() && events.size() < limit; ++it) events.push_back(*it);
  return events;
}

Coordinator::Coordinator(CoordinatorOptions options, store::Store* store, store::MetricStore* metrics, Clock* clock,
                         core::Telemetry* telemetry)
    : options_(std::move(options)), store_(store), metrics_(metrics), clock_(clock), telemetry_(telemetry) {}

Coordinator::~Coordinator() { Stop(); }

core::Now Coordinator::Now() const { return {.monotonic = clock_->MonotonicNow(), .wall = clock_->WallNow()}; }

absl::Status Coordinator::Start(DesiredSink* sink) {
  sink_ = sink;
  start_time_ = clock_->WallNow();
  SLIPWAY_ASSIGN_OR_RETURN(store::Loaded loaded, store_->Load());
  for (const std::string& line : loaded.quarantined) spdlog::error("a stored record was set aside: {}", line);
  state_.options = options_.core;
  state_.revision = loaded.header.revision();
  state_.desired_base = loaded.header.boots() << 32;
  for (core::JobEntry& entry : loaded.jobs) {
    const std::string id = entry.job.id();
    state_.revision = std::max(state_.revision, entry.job.revision());
    state_.jobs.emplace(id, std::move(entry));
  }
  for (const storage::v1::NodeRecord& record : loaded.nodes) {
    v1::Node& node = state_.nodes[record.node_id()].node;
    node.set_id(record.node_id());
    node.set_hostname(record.hostname());
  }
  for (storage::v1::RequestRecord& record : loaded.requests) requests_[record.request_id()] = std::move(record);
  core::RestoreAfterRestart(state_, Now());
  event_count_ = state_.revision - store_->compacted_revision();
  next_tick_ = next_second_ = next_retry_ = clock_->MonotonicNow();
  next_bookmark_ = next_tick_ + options_.bookmark_interval;
  ready_ = true;
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void Coordinator::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Coordinator::Run(Work work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
}

void Coordinator::Post(core::Event event) {
  Run([event = std::move(event)](Turn& turn) -> Completion {
    turn.Apply(event);
    return nullptr;
  });
}

void Coordinator::Drain(bool hurry) {
  Run([this, hurry](Turn& turn) -> Completion {
    draining_ = true;
    turn.Apply(core::Drain{.hurry = hurry});
    return nullptr;
  });
}

void Coordinator::Loop() {
  while (true) {
    std::vector<Work> round;
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
      mutex_.AwaitWithTimeout(absl::Condition(&news), options_.tick);
      stopping = stopping_;
      while (!queue_.empty() && round.size() < kRoundLimit) {
        round.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    Turn turn(*this, Now());
    std::vector<Completion> completions;
    completions.reserve(round.size());
    for (const Work& work : round) completions.push_back(work(turn));
    OnTick(turn.now());
    const absl::Status stored = Commit();
    if (stored.ok()) PublishCommitted();
    for (const Completion& completion : completions) {
      if (completion) completion(stored);
    }
    if (stopping && round.empty()) return;
  }
}

core::Effects Coordinator::Apply(const core::Event& event, const core::Now& now) {
  const auto* metrics = std::get_if<core::AgentMetrics>(&event);
  if (metrics != nullptr) TakeMetrics(metrics->batch);
  core::Effects effects = core::Step(state_, event, now);
  pending_.jobs.insert(effects.jobs.begin(), effects.jobs.end());
  pending_.nodes.insert(effects.nodes.begin(), effects.nodes.end());
  pending_.publish.insert(effects.publish.begin(), effects.publish.end());
  for (const v1::JobEvent& e : effects.events) {
    spdlog::info("job {} {} {}: {}", e.job_id(), core::StateName(e.state()), e.type(), e.message());
    if (e.type() == "Ready") {
      const core::JobEntry& entry = state_.jobs.at(e.job_id());
      const v1::Attempt& attempt = entry.job.attempts(entry.job.attempts_size() - 1);
      metrics_->ForkAfter(e.job_id(), attempt.resumed_from_step(), attempt.epoch());
    }
    pending_.events.push_back(e);
  }
  for (const v1::CauseClass cause : effects.restarts) telemetry_->Restart(cause);
  for (const core::QueueWait& wait : effects.queue_waits) telemetry_->QueueWait(wait.duration);
  return effects;
}

void Coordinator::TakeMetrics(const v1::MetricBatch& batch) {
  const auto it = state_.jobs.find(batch.job_id());
  if (it == state_.jobs.end()) return;
  const v1::Job& job = it->second.job;
  // Only what the newest attempt says: an older one's word is no part of the run any more.
  if (job.attempts_size() == 0 || job.attempts(job.attempts_size() - 1).epoch() != batch.epoch()) return;
  metrics_->Add(batch.job_id(), batch);
  if (const int64_t lost = metric_hub_.Publish(batch); lost > 0) telemetry_->StreamDropped("metrics", lost);
}

void Coordinator::OnTick(const core::Now& now) {
  if (now.monotonic < next_tick_) return;
  next_tick_ = now.monotonic + options_.tick;
  Apply(core::Tick{}, now);
  if (now.monotonic >= next_second_) {
    next_second_ = now.monotonic + absl::Seconds(1);
    sink_->RenewLeases();
    ExpireRequests(now.wall);
    CompactEvents();
    std::erase_if(ending_, [&](const auto& job) {
      if (now.monotonic < job.first) return false;
      metric_hub_.Close(job.second);
      return true;
    });
  }
  if (now.monotonic >= next_bookmark_) {
    next_bookmark_ = now.monotonic + options_.bookmark_interval;
    watchers_.Notify(Wake::kBookmark);
  }
}

void Coordinator::ExpireRequests(absl::Time now) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (FromTimestamp(it->second.time()) + options_.keep_requests >= now) {
      ++it;
      continue;
    }
    pending_.expired_requests.push_back(it->first);
    it = requests_.erase(it);
  }
}

void Coordinator::CompactEvents() {
  if (event_count_ <= options_.keep_events + options_.keep_events / 10 || !ready_) return;
  const int64_t horizon = state_.revision - options_.keep_events;
  if (const absl::Status status = store_->Compact(horizon); !status.ok()) {
    spdlog::warn("old events were not removed: {}", status.ToString());
  }
  event_count_ = state_.revision - store_->compacted_revision();
}

absl::Status Coordinator::Commit() {
  const bool nothing = pending_.jobs.empty() && pending_.events.empty() && pending_.requests.empty() &&
                       pending_.nodes.empty() && pending_.expired_requests.empty();
  if (nothing && ready_) return absl::OkStatus();
  if (!ready_) {
    // After an error the database must be opened again before it can be trusted.
    if (clock_->MonotonicNow() < next_retry_) return absl::UnavailableError(unready_reason());
    next_retry_ = clock_->MonotonicNow() + kRetryInterval;
    if (const absl::Status reopened = store_->Reopen(); !reopened.ok()) {
      SetUnready(std::string(reopened.message()));
      return reopened;
    }
  }
  store::Batch batch;
  for (const std::string& id : pending_.jobs) batch.jobs.push_back(store::ToRecord(state_.jobs.at(id)));
  for (const std::string& id : pending_.nodes) {
    storage::v1::NodeRecord& record = batch.nodes.emplace_back();
    record.set_format_version(store::kFormatVersion);
    record.set_node_id(id);
    record.set_hostname(state_.nodes.at(id).node.hostname());
  }
  batch.events = pending_.events;
  batch.requests = pending_.requests;
  batch.expired_requests = pending_.expired_requests;
  batch.revision = state_.revision;
  const absl::Duration begin = clock_->MonotonicNow();
  const absl::Status status = store_->Commit(batch);
  telemetry_->StoreWrite(clock_->MonotonicNow() - begin, status.ok());
  if (!status.ok()) {
    SetUnready(std::string(status.message()));
    return status;
  }
  if (!ready_) spdlog::info("the store can be written again");
  ready_ = true;
  return status;
}

void Coordinator::PublishCommitted() {
  const Pending committed = std::exchange(pending_, Pending{});
  event_count_ += static_cast<int64_t>(committed.events.size());
  for (const v1::JobEvent& event : committed.events) {
    recent_.push_back(event);
    if (recent_.size() > kRecentEvents) recent_.pop_front();
    // The last metrics may come after the report that the ranks have left.
    if (core::IsFinal(event.state())) ending_.emplace_back(clock_->MonotonicNow() + kLastMetrics, event.job_id());
  }
  for (const std::string& node : committed.publish) sink_->Publish(node, core::DesiredFor(state_, node));
  if (!committed.events.empty()) watchers_.Notify(Wake::kNews);
}

void Coordinator::SetUnready(const std::string& reason) {
  if (ready_.exchange(false)) spdlog::error("the store cannot be written, changes are refused: {}", reason);
  next_retry_ = clock_->MonotonicNow() + kRetryInterval;
  absl::MutexLock lock(&mutex_);
  unready_reason_ = reason;
}

std::string Coordinator::unready_reason() const {
  absl::MutexLock lock(&mutex_);
  return ready_ ? "" : unready_reason_;
}

void Coordinator::Mutate(Mutation mutation, Done done) {
  Run([this, mutation = std::move(mutation), done = std::move(done)](Turn& turn) -> Completion {
    absl::StatusOr<Answer> answer = RunMutation(turn, mutation);
    return [done, answer = std::move(answer)](const absl::Status& stored) mutable {
      // What was not stored may come back to nothing: the client must not take it for granted.
      if (answer.ok() && !stored.ok()) {
        return done(WithRetry(
            WithReason(absl::UnavailableError(absl::StrCat("not stored: ", stored.message())), "STORE_UNAVAILABLE"),
            absl::Seconds(1)));
      }
      done(std::move(answer));
    };
  });
}

absl::Status Coordinator::CheckWritable(bool creates) {
  if (draining_) {
    return WithRetry(WithReason(absl::UnavailableError("the server is shutting down"), "SHUTTING_DOWN"),
                     absl::Seconds(5));
  }
  if (!ready_) {
    return WithRetry(WithReason(absl::UnavailableError(absl::StrCat("the store is read-only: ", unready_reason())),
                                "STORE_UNAVAILABLE"),
                     absl::Seconds(1));
  }
  if (!creates || options_.data_dir.empty()) return absl::OkStatus();
  const absl::StatusOr<int64_t> free = PosixFileSystem().FreeBytes(options_.data_dir);
  if (!free.ok() || *free >= options_.min_free_bytes) return absl::OkStatus();
  return WithRetry(
      WithReason(absl::ResourceExhaustedError(absl::StrCat("only ", *free, " bytes are free in ", options_.data_dir,
                                                           "; no new jobs below ", options_.min_free_bytes)),
                 "DISK_ALMOST_FULL"),
      absl::Seconds(30));
}

absl::StatusOr<Coordinator::Answer> Coordinator::RunMutation(Turn& turn, const Mutation& mutation) {
  if (const auto known = requests_.find(mutation.request_id);
      !mutation.request_id.empty() && known != requests_.end()) {
    const storage::v1::RequestRecord& record = known->second;
    if (record.method() != mutation.method || record.body_hash() != mutation.body_hash) {
      return WithReason(
          absl::AlreadyExistsError(absl::StrCat("request id ", mutation.request_id, " was used for a ", record.method(),
                                                " of job ", record.job_id(), " with other contents")),
          "REQUEST_ID_REUSED", {{"job", record.job_id()}});
    }
    if (state_.jobs.contains(record.job_id())) {
      return Answer{.job = turn.Describe(record.job_id(), true), .number = record.number()};
    }
  }
  SLIPWAY_RETURN_IF_ERROR(CheckWritable(mutation.creates));
  std::string id;
  if (!mutation.creates) {
    SLIPWAY_ASSIGN_OR_RETURN(id, turn.Resolve(mutation.job));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const core::Event event, mutation.event(turn, id));
  if (const auto* create = std::get_if<core::CreateJob>(&event)) id = create->id;
  const core::Effects effects = turn.Apply(event);
  if (!effects.status.ok()) return WithPrecondition(effects.status, id);
  if (!mutation.request_id.empty()) {
    storage::v1::RequestRecord record;
    record.set_format_version(store::kFormatVersion);
    record.set_request_id(mutation.request_id);
    record.set_method(mutation.method);
    record.set_body_hash(mutation.body_hash);
    record.set_job_id(id);
    record.set_number(effects.checkpoint_request);
    *record.mutable_time() = ToTimestamp(turn.now().wall);
    requests_[mutation.request_id] = record;
    pending_.requests.push_back(std::move(record));
  }
  return Answer{.job = turn.Describe(id, true), .number = effects.checkpoint_request};
}

}  // namespace slipway::server::rpc
