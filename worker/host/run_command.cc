#include "worker/host/run_command.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/timestamp.h"
#include "engine/comm/backend_communicator.h"
#include "engine/comm/control_channel.h"
#include "engine/comm/parallel_groups.h"
#include "engine/comm/rendezvous.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"
#include "engine/train/guarded_call.h"
#include "engine/train/training_run.h"
#include "slipway/worker/v1/worker.pb.h"
#include "worker/host/device_setup.h"
#include "worker/link/collective_board.h"
#include "worker/link/rank_files.h"
#include "worker/link/worker_link.h"

namespace slipway::worker::host {
namespace {

using worker::v1::WorkerLaunch;
namespace comm = engine::comm;
namespace train = engine::train;

constexpr absl::Duration kOperationTimeout = absl::Minutes(10);
// Of the savers: one waits here until the slowest has written. A rank that dies ends the wait at once.
constexpr absl::Duration kSaveTimeout = absl::Hours(24);
// After the agent's lease has run out: time to save before the process ends whatever it is doing.
constexpr absl::Duration kLeaseGrace = absl::Minutes(2);

// Keeps the rank's last collective where the agent can read it after its death.
class BoardObserver final : public comm::CommObserver {
 public:
  explicit BoardObserver(link::CollectiveBoard* board) : board_(board) {}
  void Begin(const std::string& group, const char* operation, uint64_t sequence, int64_t) override {
    board_->Begin(group, operation, static_cast<int64_t>(sequence));
  }
  void End(const std::string&, const char*, uint64_t) override { board_->End(); }

 private:
  link::CollectiveBoard* board_;
};

class LinkControl final : public train::TrainControl {
 public:
  explicit LinkControl(const link::WorkerLink* link) : link_(link) {}
  bool stop_requested() const override { return link_->stop_requested() || link_->lease_expired(); }
  int64_t checkpoint_requests() const override { return link_->checkpoint_requests(); }

 private:
  const link::WorkerLink* link_;
};

// Passes what the trainer says to the agent, the board and the log.
class LinkObserver final : public train::TrainObserver {
 public:
  LinkObserver(link::WorkerLink* link, link::CollectiveBoard* board, const Clock* clock)
      : link_(link), board_(board), clock_(clock) {}

  void Phase(std::string_view phase) override {
    link_->SetPhase(phase);
    board_->SetPhase(phase);
    phase_ = phase;
  }
  void Ready(const train::StartPoint& start) override {
    spdlog::info("ready at step {}{}", start.step, start.resumed ? StrCat(" of epoch ", start.from_epoch) : "");
    link_->SetReady(start.step, start.resumed, start.from_epoch, start.spec_hash);
    step_ = start.step;
  }
  void StepDone(int64_t step) override {
    link_->SetStep(step);
    board_->SetStep(step);
    step_ = step;
  }
  void Metrics(const slipway::v1::StepMetrics& metrics) override {
    spdlog::info("step {} loss {:.6f} lr {:.6g} grad norm {:.4f}{}{} tokens/s {:.0f}{}", metrics.step(), metrics.loss(),
                 metrics.learning_rate(), metrics.grad_norm(),
                 metrics.has_num_zeros() ? StrCat(" num zeros ", metrics.num_zeros()) : "",
                 metrics.has_params_norm() ? StrCat(" params norm ", metrics.params_norm()) : "",
                 metrics.tokens_per_second(), metrics.skipped() ? " skipped" : "");
    slipway::v1::MetricRecord record;
    *record.mutable_step() = metrics;
    link_->AddMetrics(std::move(record));
  }
  void Evaluated(const slipway::v1::EvalMetrics& metrics) override {
    spdlog::info("evaluation after step {}: loss {:.6f} perplexity {:.4f} over {} tokens", metrics.step(),
                 metrics.loss(), metrics.perplexity(), metrics.loss_tokens());
    slipway::v1::MetricRecord record;
    *record.mutable_eval() = metrics;
    link_->AddMetrics(std::move(record));
  }
  void Committed(const slipway::v1::Checkpoint& checkpoint) override {
    if (checkpoint.state() == slipway::v1::CHECKPOINT_STATE_DELETED) {
      spdlog::info("checkpoint of step {} is deleted: {}", checkpoint.step(), checkpoint.path());
    } else {
      spdlog::info("checkpoint of step {} is durable: {} ({} bytes)", checkpoint.step(), checkpoint.path(),
                   checkpoint.size_bytes());
    }
    link_->AddCommitted(checkpoint);
  }
  void SaveFailed(int64_t step, const std::string& path, const absl::Status& reason) override {
    slipway::v1::Cause cause;
    cause.set_cause_class(slipway::v1::CAUSE_CLASS_STORAGE);
    cause.set_message(StrCat(path, ": ", ToStd(reason.message())));
    cause.set_rank(0);
    cause.set_phase("save");
    cause.set_step(step);
    *cause.mutable_time() = ToTimestamp(clock_->WallNow());
    link_->SetFailedSave(cause);
  }

  const std::string& phase() const { return phase_; }
  int64_t step() const { return step_; }

 private:
  link::WorkerLink* link_;
  link::CollectiveBoard* board_;
  const Clock* clock_;
  std::string phase_ = "start";
  int64_t step_ = 0;
};

slipway::v1::Cause CauseOf(const absl::Status& status, const WorkerLaunch& launch, const LinkObserver& observer) {
  slipway::v1::Cause cause;
  cause.set_cause_class(slipway::v1::CAUSE_CLASS_INTERNAL);
  if (const auto payload = status.GetPayload(train::kCausePayload); payload.has_value()) {
    slipway::v1::CauseClass parsed;
    if (slipway::v1::CauseClass_Parse(StrCat("CAUSE_CLASS_", std::string(*payload)), &parsed))
      cause.set_cause_class(parsed);
  }
  cause.set_message(link::ShortenCauseMessage(std::string(status.message())));
  cause.set_rank(launch.rank());
  cause.set_phase(observer.phase());
  cause.set_step(observer.step());
  return cause;
}

absl::StatusOr<std::unique_ptr<comm::ProcessRendezvous>> MeetOthers(const WorkerLaunch& launch) {
  comm::RendezvousOptions options;
  const std::vector<std::string> address = absl::StrSplit(launch.rendezvous_address(), absl::MaxSplits(':', 1));
  int port = 0;
  if (address.size() != 2 || !absl::SimpleAtoi(address[1], &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        StrCat("rendezvous address '", launch.rendezvous_address(), "': expected host:port"));
  }
  options.host = address[0];
  options.port = static_cast<uint16_t>(port);
  if (launch.has_rendezvous_fd()) options.listen_fd = launch.rendezvous_fd();
  options.rank = launch.rank();
  options.world = launch.world_size();
  options.prefix = StrCat(launch.job_id(), "/e", launch.epoch(), "/", launch.nonce());
  options.timeout = absl::Seconds(launch.spec().fault_tolerance().start_timeout_seconds());
  return comm::ProcessRendezvous::Create(options);
}

// The groups of this rank: the training groups on its device, and the control channel on Gloo.
struct RankGroups {
  engine::topology::Mesh mesh;
  comm::ParallelGroups groups;
  std::unique_ptr<comm::ControlChannel> control;
  comm::CommPtr save;  // the savers agree here, between host threads
};

absl::StatusOr<RankGroups> MakeGroups(const WorkerLaunch& launch, const comm::ProcessRendezvous& rendezvous,
                                      at::Device device, std::shared_ptr<comm::CommObserver> observer) {
  SLIPWAY_ASSIGN_OR_RETURN(engine::topology::Mesh mesh, engine::spec::MeshOf(launch.spec().parallelism()));
  comm::BackendOptions options;
  options.interface = launch.network_interface();
  options.address = rendezvous.options().host;
  options.timeout = kOperationTimeout;
  SLIPWAY_ASSIGN_OR_RETURN(const auto control_factory,
                           comm::BackendGroupFactory::Create(rendezvous, "control", options));
  options.timeout = kSaveTimeout;
  SLIPWAY_ASSIGN_OR_RETURN(const auto save_factory, comm::BackendGroupFactory::Create(rendezvous, "save", options));
  options.timeout = kOperationTimeout;
  options.backend = device.is_cuda() ? "nccl" : "gloo";
  options.device = device;
  options.observer = std::move(observer);
  SLIPWAY_ASSIGN_OR_RETURN(const auto factory, comm::BackendGroupFactory::Create(rendezvous, "train", options));
  return train::Guarded("making process groups", [&]() -> absl::StatusOr<RankGroups> {
    std::vector<int> everybody(launch.world_size());
    for (int r = 0; r < launch.world_size(); ++r) everybody[r] = r;
    auto control = comm::MakeControlChannel(control_factory->MakeGroup("control", everybody));
    comm::CommPtr save = save_factory->MakeGroup("save", everybody);
    comm::ParallelGroups groups = comm::MakeParallelGroups(mesh, launch.rank(), *factory);
    return RankGroups{std::move(mesh), std::move(groups), std::move(control), std::move(save)};
  });
}

absl::StatusOr<train::TrainOutcome> RunRank(const WorkerLaunch& launch, const Clock& clock, FileSystem& files,
                                            const link::WorkerLink& worker_link, LinkObserver& observer,
                                            std::shared_ptr<comm::CommObserver> comm_observer) {
  observer.Phase("device");
  SLIPWAY_ASSIGN_OR_RETURN(const at::Device device, OpenDevice(launch.device()));
  observer.Phase("rendezvous");
  SLIPWAY_ASSIGN_OR_RETURN(const auto rendezvous, MeetOthers(launch));
  SLIPWAY_ASSIGN_OR_RETURN(RankGroups rank_groups, MakeGroups(launch, *rendezvous, device, std::move(comm_observer)));
  train::TrainEnvironment environment;
  environment.mesh = &rank_groups.mesh;
  environment.rank = launch.rank();
  environment.groups = &rank_groups.groups;
  environment.control = rank_groups.control.get();
  environment.save_group = rank_groups.save;
  environment.device = device;
  environment.epoch = launch.epoch();
  environment.lineage.assign(launch.lineage().begin(), launch.lineage().end());
  environment.job_id = launch.job_id();
  environment.output_dir = launch.output_dir();
  environment.checkpoint_dir = launch.checkpoint_dir();
  environment.files = &files;
  environment.clock = &clock;
  absl::StatusOr<train::TrainOutcome> outcome =
      train::RunTraining(launch.spec(), environment, LinkControl(&worker_link), observer);
  if (!outcome.ok()) {
    // The groups may hang in their destructors; the process ends right after this.
    static_cast<void>(new RankGroups(std::move(rank_groups)));
  }
  return outcome;
}

void WriteOutcome(FileSystem& files, const std::string& state_dir, slipway::v1::RankOutcome outcome,
                  const slipway::v1::Cause& cause, int64_t step) {
  worker::v1::WorkerOutcome record;
  record.set_outcome(outcome);
  if (outcome == slipway::v1::RANK_OUTCOME_FAULT) *record.mutable_cause() = cause;
  record.set_step(step);
  if (const absl::Status written = link::WriteOutcome(files, state_dir, record); !written.ok()) {
    spdlog::error("the outcome cannot be written: {}", written.ToString());
  }
}

link::WorkerLink::Options LinkOptions(const WorkerLaunch& launch) {
  link::WorkerLink::Options options = link::WorkerLink::OptionsFrom(launch);
  options.on_lease_expired = [] {
    spdlog::error("no word from the agent: its lease has run out; saving and leaving");
    std::thread([] {
      absl::SleepFor(kLeaseGrace);
      spdlog::critical("the checkpoint took too long after the lease had run out; leaving without it");
      ::_exit(1);
    }).detach();
  };
  return options;
}

}  // namespace

int RunCommand(const std::string& launch_file) {
  PosixFileSystem files;
  const RealClock clock;
  absl::StatusOr<WorkerLaunch> launch = link::ReadLaunch(files, launch_file);
  if (!launch.ok()) {
    spdlog::critical("{}", launch.status().ToString());
    return 2;
  }
  SetThreads(launch->threads());
  LoggingOptions logging;
  logging.program = StrCat("rank ", launch->rank());
  logging.stderr_level = launch->spec().logger().stderr_level();
  if (const absl::Status status = SetUpLogging(logging); !status.ok()) spdlog::error("{}", status.ToString());

  auto board = link::CollectiveBoard::Create(JoinPath(launch->state_dir(), link::kCollectiveFile));
  if (!board.ok()) {
    spdlog::critical("{}", board.status().ToString());
    return 1;
  }
  link::WorkerLink worker_link(LinkOptions(*launch), clock, files);
  LinkObserver observer(&worker_link, board->get(), &clock);
  const absl::StatusOr<train::TrainOutcome> result =
      RunRank(*launch, clock, files, worker_link, observer, std::make_shared<BoardObserver>(board->get()));

  slipway::v1::RankOutcome outcome = slipway::v1::RANK_OUTCOME_FAULT;
  slipway::v1::Cause cause;
  if (result.ok()) {
    outcome = *result == train::TrainOutcome::kCompleted ? slipway::v1::RANK_OUTCOME_COMPLETED
                                                         : slipway::v1::RANK_OUTCOME_STOPPED;
  } else {
    cause = CauseOf(result.status(), *launch, observer);
    spdlog::error("rank {} failed: {}", launch->rank(), ToStd(result.status().message()));
  }
  WriteOutcome(files, launch->state_dir(), outcome, cause, observer.step());
  worker_link.SetOutcome(outcome, cause);
  worker_link.WaitUntilSent(absl::Seconds(2));
  return result.ok() ? 0 : 1;
}

}  // namespace slipway::worker::host
