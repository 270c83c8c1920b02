#include "server/http/cluster_metrics.h"

#include <map>
#include <string>
#include <utility>

#include "common/timestamp.h"
#include "server/core/placement.h"

namespace slipway::server::http {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Families by name, in the order of the first use of each.
class Families {
 public:
  void Gauge(const std::string& name, const std::string& help, Labels labels, double value) {
    const auto [it, added] = index_.emplace(name, families_.size());
    if (added) {
      prometheus::MetricFamily& family = families_.emplace_back();
      family.name = name;
      family.help = help;
      family.type = prometheus::MetricType::Gauge;
    }
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    families_[it->second].metric.push_back(std::move(metric));
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  std::map<std::string, size_t> index_;
  std::vector<prometheus::MetricFamily> families_;
};

bool IsShown(const v1::Job& job, absl::Time now) {
  if (job.attempts_size() == 0) return false;  // nothing to tell yet
  return !core::IsFinal(job.state()) || now - FromTimestamp(job.end_time()) < kSeriesGrace;
}

void AddJob(Families& out, const v1::Job& job) {
  const Labels labels = {{"job", job.id()}, {"name", job.name()}, {"project", job.project()}};
  const v1::JobProgress& progress = job.progress();
  Labels state = labels;
  state.push_back({"state", core::StateName(job.state())});
  out.Gauge("slipway_job_state", "1 for the state that the job is in", state, 1);
  out.Gauge("slipway_step", "Steps done", labels, static_cast<double>(progress.step()));
  out.Gauge("slipway_train_iters", "Steps of the whole run", labels, static_cast<double>(progress.train_iters()));
  out.Gauge("slipway_job_restarts", "Restarts of the job", labels, job.restarts());
  if (progress.has_last_step_metrics()) {
    const v1::StepMetrics& step = progress.last_step_metrics();
    out.Gauge("slipway_loss", "Loss of the last step", labels, step.loss());
    out.Gauge("slipway_learning_rate", "Learning rate of the last step", labels, step.learning_rate());
    out.Gauge("slipway_grad_norm", "Global gradient norm before clipping", labels, step.grad_norm());
    if (step.has_num_zeros()) {
      out.Gauge("slipway_num_zeros", "Gradient elements that are zero", labels, static_cast<double>(step.num_zeros()));
    }
    if (step.has_params_norm()) out.Gauge("slipway_params_norm", "Norm of all parameters", labels, step.params_norm());
    out.Gauge("slipway_tokens_per_second", "Tokens a second over all ranks", labels, step.tokens_per_second());
    out.Gauge("slipway_step_duration_seconds", "Time of the last step", labels, step.step_seconds());
    out.Gauge("slipway_data_wait_seconds", "Time of the last step that went into waiting for data", labels,
              step.data_wait_seconds());
    out.Gauge("slipway_skipped_steps", "Steps skipped for values that were not finite", labels,
              static_cast<double>(step.skipped_total()));
    if (step.has_routing()) {
      const v1::RoutingMetrics& routing = step.routing();
      out.Gauge("slipway_expert_max_load_ratio", "Tokens of the fullest expert over the even share", labels,
                routing.max_load());
      out.Gauge("slipway_expert_dropped_tokens", "Choices of experts that were full, in the last step", labels,
                static_cast<double>(routing.dropped_tokens()));
      out.Gauge("slipway_load_balancing_loss", "Balancing loss of the routers in the last step", labels,
                routing.load_balancing_loss());
    }
    if (step.has_mfu())
      out.Gauge("slipway_model_flops_utilization_ratio", "Share of the peak, 0 to 1", labels, step.mfu());
  }
  if (progress.has_last_eval_metrics()) {
    out.Gauge("slipway_loss_validation", "Loss of the last evaluation", labels, progress.last_eval_metrics().loss());
  }
  if (job.checkpoints_size() > 0) {
    const v1::Checkpoint& newest = job.checkpoints(job.checkpoints_size() - 1);
    const absl::Time committed = FromTimestamp(newest.commit_time());
    out.Gauge("slipway_checkpoint_last_success_timestamp_seconds", "When the newest checkpoint became durable", labels,
              absl::ToDoubleSeconds(committed - absl::UnixEpoch()));
    out.Gauge("slipway_checkpoint_bytes", "Size of the newest checkpoint", labels,
              static_cast<double>(newest.size_bytes()));
  }
}

std::string NodeStateName(v1::NodeState state) {
  return v1::NodeState_Name(state).substr(std::string("NODE_STATE_").size());
}

}  // namespace

std::vector<prometheus::MetricFamily> ClusterMetrics(const core::ClusterState& state, absl::Time now) {
  Families out;
  std::map<v1::JobState, int> jobs;
  for (int value = v1::JOB_STATE_QUEUED; value <= v1::JOB_STATE_CANCELLED; ++value) {
    jobs[static_cast<v1::JobState>(value)] = 0;
  }
  for (const auto& [id, entry] : state.jobs) ++jobs[entry.job.state()];
  for (const auto& [job_state, count] : jobs) {
    out.Gauge("slipway_jobs", "Jobs by state", {{"state", core::StateName(job_state)}}, count);
  }
  std::map<v1::NodeState, int> nodes = {
      {v1::NODE_STATE_CONNECTED, 0}, {v1::NODE_STATE_UNREACHABLE, 0}, {v1::NODE_STATE_LOST, 0}};
  for (const auto& [id, entry] : state.nodes) ++nodes[entry.node.state()];
  for (const auto& [node_state, count] : nodes) {
    out.Gauge("slipway_nodes", "Nodes by state", {{"state", NodeStateName(node_state)}}, count);
  }
  for (const auto& [kind, name] : {std::pair{v1::DEVICE_KIND_CPU, "cpu"}, std::pair{v1::DEVICE_KIND_CUDA, "cuda"}}) {
    const core::SlotCount slots = core::CountSlots(state, kind);
    out.Gauge("slipway_slots", "Slots of nodes that are not lost", {{"kind", name}}, slots.total);
    out.Gauge("slipway_slots_free", "Free slots of connected nodes", {{"kind", name}}, slots.free);
  }
  out.Gauge("slipway_revision", "Revision of the store", {}, static_cast<double>(state.revision));
  for (const auto& [id, entry] : state.jobs) {
    if (IsShown(entry.job, now)) AddJob(out, entry.job);
  }
  return out.Take();
}

}  // namespace slipway::server::http
