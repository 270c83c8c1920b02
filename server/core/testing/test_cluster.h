// The state machine with scripted agents and a clock that a test moves. Not thread-safe.
#ifndef SLIPWAY_SERVER_CORE_TESTING_TEST_CLUSTER_H_
#define SLIPWAY_SERVER_CORE_TESTING_TEST_CLUSTER_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/desired.h"
#include "server/core/step.h"
#include "server/core/testing/scripted_agent.h"

namespace slipway::server::core::testing {

inline v1::TrainingSpec TestSpec(int data = 1, int tensor = 1) {
  v1::TrainingSpec spec;
  spec.set_name("tiny");
  spec.set_project("default");
  spec.mutable_training()->set_train_iters(100);
  spec.mutable_parallelism()->set_data_parallel_size(data);
  spec.mutable_parallelism()->set_tensor_model_parallel_size(tensor);
  spec.mutable_parallelism()->set_device("auto");
  v1::FaultToleranceSpec& limits = *spec.mutable_fault_tolerance();
  limits.set_max_restarts(100);
  limits.set_max_user_error_restarts(3);
  limits.set_max_restarts_without_progress(5);
  limits.set_start_timeout_seconds(600);
  limits.set_pause_timeout_seconds(600);
  limits.set_termination_grace_seconds(10);
  return spec;
}

class TestCluster {
 public:
  TestCluster() {
    now.monotonic = absl::Hours(1);
    now.wall = absl::FromUnixSeconds(1'700'000'000);
  }

  Effects Do(const Event& event) {
    Effects effects = Step(state, event, now);
    events.insert(events.end(), effects.events.begin(), effects.events.end());
    return effects;
  }

  ScriptedAgent& Connect(const std::string& node, int slots, v1::DeviceKind kind = v1::DEVICE_KIND_CPU) {
    if (!agents.contains(node)) agents[node] = ScriptedAgent(node, slots, kind);
    agents[node].disk = disk;
    Reconnect(node);
    return agents[node];
  }
  void Reconnect(const std::string& node) {
    Do(AgentConnected{agents[node].Hello(++session_)});
    Report(node);
  }
  void Disconnect(const std::string& node) { Do(AgentDisconnected{node, state.nodes.at(node).session_number}); }

  void Report(const std::string& node) { Do(AgentObserved{node, agents[node].Observe()}); }
  // The agent reads what it should do, does it, and says so.
  void Sync(const std::string& node) {
    agents[node].Apply(DesiredFor(state, node));
    Report(node);
    Do(AgentHeartbeat{node, agents[node].applied_revision()});
  }
  // Until nothing changes any more.
  void Settle() {
    for (int round = 0; round < 20; ++round) {
      const int64_t before = state.revision;
      for (auto& [node, agent] : agents) {
        if (state.nodes.at(node).node.state() == v1::NODE_STATE_CONNECTED) Sync(node);
      }
      if (state.revision == before && round > 1) return;
    }
  }
  void Advance(absl::Duration by) {
    now.monotonic += by;
    now.wall += by;
    Do(Tick{});
  }

  // With an id that is equal to the name.
  Effects Submit(const std::string& id, v1::TrainingSpec spec) {
    spec.set_name(id);
    return Do(CreateJob{.id = id,
                        .nonce = "n",
                        .spec = spec,
                        .submitted_spec = spec,
                        .output_dir = "/out/" + id,
                        .checkpoint_dir = "/out/" + id + "/checkpoints"});
  }

  const v1::Job& Job(const std::string& id) { return state.jobs.at(id).job; }
  v1::JobState State(const std::string& id) { return Job(id).state(); }
  ScriptedAgent::Key Live(const std::string& id) {
    const v1::Attempt* attempt = LiveAttempt(std::as_const(state.jobs.at(id)));
    return {id, attempt == nullptr ? 0 : attempt->epoch()};
  }

  ClusterState state;
  Now now;
  std::map<std::string, ScriptedAgent> agents;
  std::vector<v1::JobEvent> events;
  std::shared_ptr<ScriptedAgent::Disk> disk = std::make_shared<ScriptedAgent::Disk>();

 private:
  int64_t session_ = 0;
};

}  // namespace slipway::server::core::testing

#endif  // SLIPWAY_SERVER_CORE_TESTING_TEST_CLUSTER_H_
