#include "engine/train/training_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/timestamp.h"
#include "engine/arch/model_estimate.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/checkpoint_saver.h"
#include "engine/checkpoint/hf_export.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/pipeline_runner.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/resolve.h"
#include "engine/train/data_feed.h"
#include "engine/train/datasets.h"
#include "engine/train/device_peak.h"
#include "engine/train/evaluator.h"
#include "engine/train/guarded_call.h"
#include "engine/train/model_instance.h"
#include "engine/train/run_options.h"
#include "engine/train/step_reporter.h"

namespace slipway::engine::train {
namespace {

// The spec's hash as the control channel compares it: its first 16 hex digits.
uint64_t HashPrefix(const std::string& hash) { return std::stoull(hash.substr(0, 16), nullptr, 16); }

class TrainingRun {
 public:
  TrainingRun(const v1::TrainingSpec& spec, const TrainEnvironment& environment, const TrainControl& control,
              TrainObserver& observer)
      : spec_(spec),
        env_(environment),
        control_(control),
        observer_(observer),
        spec_hash_(spec::SpecHash(spec)),
        lr_schedule_(ScheduleOptions(spec)) {}

  absl::StatusOr<TrainOutcome> Run() {
    // Before anything else is exchanged: ranks of different specifications would wait for each other in vain.
    env_.control->Post({.spec_hash = HashPrefix(spec_hash_)});
    SLIPWAY_RETURN_IF_ERROR(env_.control->Take().status());
    observer_.Phase("load");
    SLIPWAY_RETURN_IF_ERROR(Load());
    absl::StatusOr<TrainOutcome> outcome = Guarded("training", [&] { return Train(); });
    // Too many non-finite steps end all ranks alike: what is being saved still becomes durable. With any other error
    // this rank is alone, and a save that is under way is given up.
    if (absl::IsAborted(outcome.status()) && outcome.status().GetPayload(kCausePayload) == "NUMERIC") {
      const absl::Status ended = Guarded("saving", [&] {
        EndSaveAndGoOn();
        return absl::OkStatus();
      });
      if (!ended.ok()) spdlog::error("{}", ToStd(ended.message()));
    }
    return outcome;
  }

 private:
  absl::Status Load();
  absl::StatusOr<StartPoint> LoadWeights();
  void MakeReporter();
  absl::StatusOr<TrainOutcome> Train();
  absl::Status RunStep();
  absl::Status EvaluateNow();
  // Begins to save this step, unless it is durable already; the earlier save, if one is under way, is waited for. An
  // error is not one of saving: it ends the run.
  absl::Status BeginSave(int64_t request_number);
  // Takes the outcome of the save that is under way, waiting for it, and tells it; OK without one.
  absl::Status EndSave();
  // A save that failed costs nothing but itself: all ranks failed alike and the older checkpoints are untouched.
  void EndSaveAndGoOn();
  // This step, durable.
  absl::Status SaveNow(int64_t request_number);
  absl::StatusOr<TrainOutcome> Finish();
  void PostControl(int64_t step, bool compare_weights);
  int32_t ParameterGroup() const;
  bool IsReporter() const { return env_.rank == 0; }
  bool Due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }

  const v1::TrainingSpec& spec_;
  const TrainEnvironment& env_;
  const TrainControl& control_;
  TrainObserver& observer_;
  const std::string spec_hash_;
  const optim::LrScheduleOptions lr_schedule_;

  arch::ModelArch arch_;
  std::string config_json_;
  Datasets datasets_;
  std::optional<ModelInstance> model_;
  std::optional<parallel::PipelineRunner> runner_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<DataFeed> feed_;
  std::optional<StepReporter> reporter_;
  topology::PipelineSchedule schedule_;
  checkpoint::RunState state_;
  std::vector<v1::LineageEntry> lineage_;
  // The newest durable checkpoint of this run's history, also one that it resumed from.
  std::optional<v1::Checkpoint> committed_;
  int64_t served_requests_ = 0;    // the newest that a save was begun for
  int64_t answered_requests_ = 0;  // the newest that a durable checkpoint answers: the next save answers the others
  int64_t saving_step_ = 0;        // of the save that is under way
  std::optional<checkpoint::CheckpointSaver> saver_;  // last: it reads the store until it is gone
};

absl::Status TrainingRun::Load() {
  SLIPWAY_ASSIGN_OR_RETURN(arch_, spec::ArchFromSpec(spec_));
  if (spec_.model().has_hf_path()) {
    SLIPWAY_ASSIGN_OR_RETURN(config_json_, env_.files->ReadFile(JoinPath(spec_.model().hf_path(), "config.json")));
  }
  SLIPWAY_ASSIGN_OR_RETURN(datasets_, OpenDatasets(spec_, arch_, JoinPath(env_.output_dir, "cache"), *env_.files));
  SLIPWAY_ASSIGN_OR_RETURN(const topology::PipelinePartition partition,
                           spec::PartitionOf(spec_.parallelism(), arch_.num_layers));
  SLIPWAY_ASSIGN_OR_RETURN(model_, ModelInstance::Create(arch_, *env_.mesh, partition, env_.rank, *env_.groups,
                                                         StoreOptions(spec_, env_.device), LayerOptions(spec_, arch_)));
  const topology::Coordinates at = env_.mesh->CoordinatesOf(env_.rank);
  const corpus::BatchSlicing slicing = Slicing(spec_, at);
  SLIPWAY_ASSIGN_OR_RETURN(schedule_, spec::ScheduleOf(spec_.parallelism(), slicing.micro_batches()));
  optimizer_.emplace(model_->store(), *env_.groups, OptimizerOptions(spec_));
  saver_.emplace(*env_.files, model_->store(), *env_.groups, env_.save_group,
                 int64_t{spec_.checkpoint().save_buffer_mib()} << 20, *env_.clock);
  optimizer_->SetListener(&*saver_);
  SLIPWAY_ASSIGN_OR_RETURN(const StartPoint start, Guarded("loading weights", [&] { return LoadWeights(); }));
  runner_.emplace(model_->TakeChunks(), model_->store(), *env_.groups, RunnerOptions(spec_, arch_, env_.device));
  feed_.emplace(datasets_.training, slicing, ShapeOfBatches(spec_, at, env_.device));
  MakeReporter();
  observer_.Ready(start);
  if (committed_.has_value() && IsReporter()) {
    // The attempt that wrote it may have died before the sync that makes it durable, or before it could tell.
    if (const absl::Status synced = env_.files->SyncDirectory(env_.checkpoint_dir); !synced.ok())
      return WithCause(synced, "STORAGE");
    observer_.Committed(*committed_);
  }
  return absl::OkStatus();
}

absl::StatusOr<StartPoint> TrainingRun::LoadWeights() {
  StartPoint start;
  start.spec_hash = spec_hash_;
  std::vector<std::string> notes;
  const absl::StatusOr<std::optional<checkpoint::ResumePoint>> found =
      checkpoint::FindResumePoint(*env_.files, env_.checkpoint_dir, env_.job_id, env_.lineage, &notes);
  if (!found.ok())
    return WithCause(found.status(), absl::IsFailedPrecondition(found.status()) ? "USER_ERROR" : "STORAGE");
  const std::optional<checkpoint::ResumePoint>& resume = *found;
  if (IsReporter()) {
    if (const absl::Status cleared = format::RemoveAbandoned(*env_.files, env_.checkpoint_dir, env_.epoch);
        !cleared.ok()) {
      spdlog::warn("what earlier saves left stays: {}", ToStd(cleared.message()));
    }
  }
  for (const std::string& note : notes) spdlog::warn("{}", note);
  lineage_ = env_.lineage;
  v1::LineageEntry own;
  own.set_epoch(env_.epoch);
  parallel::FlatStore& store = model_->store();
  if (resume.has_value()) {
    SLIPWAY_ASSIGN_OR_RETURN(state_, checkpoint::LoadCheckpoint(*env_.files, resume->path, store));
    optimizer_->SetUpdates(state_.optimizer_updates);
    if (state_.threads != at::get_num_threads() && env_.device.is_cpu()) {
      spdlog::warn(
          "the checkpoint was written with {} CPU threads a rank, this run has {}: the last bits of its losses will "
          "differ",
          state_.threads, at::get_num_threads());
    }
    start.step = state_.step;
    start.resumed = true;
    start.from_epoch = resume->epoch;
    own.set_from_epoch(resume->epoch);
    own.set_from_step(resume->step);
    committed_.emplace();
    committed_->set_job_id(env_.job_id);
    committed_->set_step(resume->step);
    committed_->set_epoch(resume->epoch);
    committed_->set_path(resume->path);
    committed_->set_state(v1::CHECKPOINT_STATE_COMMITTED);
    committed_->set_size_bytes(resume->size_bytes);
    *committed_->mutable_commit_time() = ToTimestamp(resume->commit_time);
    spdlog::info("resumed from {}", resume->path);
  } else if (spec_.model().has_pretrained_checkpoint()) {
    SLIPWAY_RETURN_IF_ERROR(
        checkpoint::LoadCheckpointWeights(*env_.files, spec_.model().pretrained_checkpoint(), store));
  } else if (spec_.model().has_hf_path() && !spec_.model().random_init()) {
    SLIPWAY_RETURN_IF_ERROR(checkpoint::LoadHfWeights(*env_.files, spec_.model().hf_path(), store));
  } else {
    store.InitializeWeights(static_cast<uint64_t>(spec_.training().seed()));
  }
  state_.threads = at::get_num_threads();
  std::erase_if(lineage_, [&](const v1::LineageEntry& entry) { return entry.epoch() == env_.epoch; });
  lineage_.push_back(own);
  return start;
}

void TrainingRun::MakeReporter() {
  const int64_t seq_length = spec_.training().seq_length();
  ReporterOptions options;
  options.log_interval = spec_.logger().log_interval();
  options.max_consecutive_nonfinite = spec_.training().max_consecutive_nonfinite_steps();
  options.flops_per_token = arch::FlopsPerToken(arch_, seq_length, arch_.vocab_size);
  options.peak_flops_per_second =
      DevicePeakFlops(env_.device, ComputeType(spec_.precision())) * static_cast<double>(env_.mesh->sizes().World());
  options.epoch = env_.epoch;
  options.global_batch_size = spec_.training().global_batch_size();
  options.reports = IsReporter();
  reporter_.emplace(options, *env_.clock, observer_, state_);
}

// Ranks with the same number hold the same parameters.
int32_t TrainingRun::ParameterGroup() const {
  const topology::Coordinates at = env_.mesh->CoordinatesOf(env_.rank);
  const topology::MeshSizes& sizes = env_.mesh->sizes();
  return ((at.pp * sizes.tp + at.tp) * sizes.ep + at.ep) * sizes.etp + at.etp;
}

void TrainingRun::PostControl(int64_t step, bool compare_weights) {
  comm::ControlRecord record;
  record.step = step;
  record.spec_hash = HashPrefix(spec_hash_);
  if (compare_weights) {
    record.parameter_checksum = model_->store().WeightsChecksum();
    record.parameter_group = ParameterGroup();
  }
  record.stop = control_.stop_requested();
  record.checkpoint_requests = control_.checkpoint_requests();
  env_.control->Post(record);
}

absl::StatusOr<TrainOutcome> TrainingRun::Train() {
  const v1::ValidationSpec& validation = spec_.validation();
  // A rank that starts from other weights, at another step or with another spec is found before the first step.
  PostControl(state_.step + 1, /*compare_weights=*/true);
  const int64_t first_step = state_.step;
  if (state_.step == 0 && validation.eval_at_start() && validation.eval_interval() > 0)
    SLIPWAY_RETURN_IF_ERROR(EvaluateNow());
  while (state_.step < spec_.training().train_iters()) {
    SLIPWAY_ASSIGN_OR_RETURN(const comm::ControlDecision decision, env_.control->Take());
    const int64_t interval = spec_.training().check_weight_hash_across_dp_replicas_interval();
    PostControl(state_.step + 2, /*compare_weights=*/state_.step > first_step && Due(interval));
    if (decision.failed_rank >= 0) {
      return WithCause(absl::AbortedError(StrCat("rank ", decision.failed_rank, " cannot go on")), "INTERNAL");
    }
    if (decision.stop) {
      SLIPWAY_RETURN_IF_ERROR(reporter_->Flush());
      const absl::Status saved = SaveNow(decision.checkpoint_requests);
      if (!saved.ok()) return WithCause(Annotate(saved, "the checkpoint of a stop"), "STORAGE");
      return TrainOutcome::kStopped;
    }
    if (saver_->finished()) EndSaveAndGoOn();
    if (decision.checkpoint_requests > served_requests_) {
      SLIPWAY_RETURN_IF_ERROR(BeginSave(decision.checkpoint_requests));
    }
    observer_.Phase("step");
    SLIPWAY_RETURN_IF_ERROR(RunStep());
    const bool last = state_.step == spec_.training().train_iters();
    if (validation.eval_interval() > 0 && (Due(validation.eval_interval()) || last))
      SLIPWAY_RETURN_IF_ERROR(EvaluateNow());
    if (!last && Due(spec_.checkpoint().save_interval())) SLIPWAY_RETURN_IF_ERROR(BeginSave(served_requests_));
  }
  return Finish();
}

absl::Status TrainingRun::RunStep() {
  LaunchedStep launched;
  launched.started = env_.clock->MonotonicNow();
  SLIPWAY_ASSIGN_OR_RETURN(const StepBatch batch, feed_->Take(state_.consumed_samples));
  launched.data_wait = env_.clock->MonotonicNow() - launched.started;
  launched.step = state_.step + 1;
  launched.learning_rate = optim::LearningRate(lr_schedule_, state_.step);
  launched.total_weight = batch.total_weight;

  parallel::StepInput input;
  input.micro_batch = [&](int m) { return batch.micro_batches[m]; };
  input.loss_scale = 1.0 / batch.total_weight;
  input.seed = static_cast<uint64_t>(spec_.training().seed());
  input.step = launched.step;
  input.sample_loss_scale = 1.0 / static_cast<double>(spec_.training().global_batch_size());
  nn::RoutingStatistics routing;
  if (arch_.moe.has_value()) {
    routing.table = at::zeros({arch_.num_layers, arch_.moe->num_experts + 3},
                              at::TensorOptions().dtype(at::kDouble).device(env_.device));
    input.routing = &routing;
  }
  const at::Tensor loss_sum = runner_->TrainStep(schedule_, input);
  // Before the optimizer: the gathers that it starts must not stand between.
  launched.sums = StepReporter::SumOverRanks(loss_sum, batch.tokens, *env_.groups, env_.device);
  if (routing.table.defined()) {
    // Every rank counted its own tokens in its own layers.
    env_.groups->world->AllReduce(routing.table, comm::ReduceOp::kSum)->Wait();
    launched.routing = routing.table;
  }
  launched.outcome = optimizer_->Step(launched.learning_rate, loss_sum);
  state_.step = launched.step;
  state_.consumed_samples += spec_.training().global_batch_size();
  launched.consumed_samples = state_.consumed_samples;
  return reporter_->Launched(std::move(launched));
}

absl::Status TrainingRun::EvaluateNow() {
  if (datasets_.validation == nullptr) return absl::OkStatus();
  SLIPWAY_RETURN_IF_ERROR(reporter_->Flush());
  observer_.Phase("eval");
  const absl::Duration start = env_.clock->MonotonicNow();
  EvaluatorOptions options;
  options.slicing = Slicing(spec_, env_.mesh->CoordinatesOf(env_.rank));
  options.shape = ShapeOfBatches(spec_, env_.mesh->CoordinatesOf(env_.rank), env_.device);
  if (spec_.validation().has_eval_iters()) options.iterations = spec_.validation().eval_iters();
  SLIPWAY_ASSIGN_OR_RETURN(const EvaluationResult result,
                           Evaluate(*runner_, *datasets_.validation, options, *env_.groups));
  if (!IsReporter()) return absl::OkStatus();
  v1::EvalMetrics metrics;
  metrics.set_step(state_.step);
  metrics.set_loss(WithPlainNan(result.loss));
  metrics.set_perplexity(WithPlainNan(std::exp(result.loss)));
  metrics.set_loss_tokens(static_cast<int64_t>(result.weight));
  metrics.set_seconds(absl::ToDoubleSeconds(env_.clock->MonotonicNow() - start));
  metrics.set_epoch(env_.epoch);
  *metrics.mutable_time() = ToTimestamp(env_.clock->WallNow());
  observer_.Evaluated(metrics);
  return absl::OkStatus();
}

absl::Status TrainingRun::BeginSave(int64_t request_number) {
  EndSaveAndGoOn();
  SLIPWAY_RETURN_IF_ERROR(reporter_->Flush());
  observer_.Phase("save");
  const int64_t answers = request_number > answered_requests_ ? request_number : 0;
  served_requests_ = std::max(served_requests_, request_number);
  if (committed_.has_value() && committed_->step() == state_.step) {
    // Durable already; a new request is answered with it.
    answered_requests_ = std::max(answered_requests_, answers);
    if (answers > 0 && IsReporter()) {
      committed_->set_request_number(answers);
      observer_.Committed(*committed_);
    }
    return absl::OkStatus();
  }
  checkpoint::SaveRequest request;
  request.root = env_.checkpoint_dir;
  request.job_id = env_.job_id;
  request.epoch = env_.epoch;
  request.state = state_;
  request.state.optimizer_updates = static_cast<int64_t>(optimizer_->updates().item<float>());
  request.spec = spec_;
  request.lineage = lineage_;
  request.config_json = config_json_;
  request.keep_last = spec_.checkpoint().keep_last();
  request.request_number = answers;
  saving_step_ = state_.step;
  saver_->Begin(std::move(request));
  return absl::OkStatus();
}

absl::Status TrainingRun::EndSave() {
  if (!saver_->under_way()) return absl::OkStatus();
  if (!saver_->finished()) observer_.Phase("save");
  SLIPWAY_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> changes, saver_->Take());
  committed_ = changes[0];
  answered_requests_ = std::max(answered_requests_, committed_->request_number());
  if (IsReporter()) {
    for (const v1::Checkpoint& change : changes) observer_.Committed(change);
  }
  return absl::OkStatus();
}

void TrainingRun::EndSaveAndGoOn() {
  const absl::Status saved = EndSave();
  if (saved.ok()) return;
  spdlog::error("the checkpoint of step {} failed, training goes on: {}", saving_step_, ToStd(saved.message()));
  if (!IsReporter()) return;
  observer_.SaveFailed(saving_step_, JoinPath(env_.checkpoint_dir, format::CheckpointName({saving_step_, env_.epoch})),
                       saved);
}

absl::Status TrainingRun::SaveNow(int64_t request_number) {
  SLIPWAY_RETURN_IF_ERROR(BeginSave(request_number));
  return EndSave();
}

absl::StatusOr<TrainOutcome> TrainingRun::Finish() {
  // The decision for the step after the last one: taken, so that every rank leaves the channel in the same place.
  SLIPWAY_RETURN_IF_ERROR(env_.control->Take().status());
  SLIPWAY_RETURN_IF_ERROR(reporter_->Flush());
  const absl::Status saved = SaveNow(served_requests_);
  if (!saved.ok()) return WithCause(Annotate(saved, "the final checkpoint"), "STORAGE");
  if (spec_.checkpoint().export_hf() && IsReporter()) {
    observer_.Phase("export");
    SLIPWAY_RETURN_IF_ERROR(checkpoint::ExportLatest(*env_.files, env_.checkpoint_dir, env_.job_id, lineage_, spec_,
                                                     JoinPath(env_.output_dir, "hf")));
  }
  return TrainOutcome::kCompleted;
}

}  // namespace

absl::StatusOr<TrainOutcome> RunTraining(const v1::TrainingSpec& resolved, const TrainEnvironment& environment,
                                         const TrainControl& control, TrainObserver& observer) {
  return Guarded("training", [&] { return TrainingRun(resolved, environment, control, observer).Run(); });
}

}  // namespace slipway::engine::train
