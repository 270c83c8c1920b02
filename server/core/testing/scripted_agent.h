// An agent without processes, for tests: it takes desired states and says what its make-believe ranks do. By itself it
// passes preflights, gets ranks ready, stops them as asked and ends them when they must; each of these can be switched
// off, and every rank can be set by hand. Not thread-safe.
#ifndef SLIPWAY_SERVER_CORE_TESTING_SCRIPTED_AGENT_H_
#define SLIPWAY_SERVER_CORE_TESTING_SCRIPTED_AGENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "slipway/v1/agent_service.pb.h"

namespace slipway::server::core::testing {

class ScriptedAgent {
 public:
  using Key = std::pair<std::string, int64_t>;  // job, epoch
  // The newest checkpoint of each job: step and epoch. Shared by the agents that share a disk.
  using Disk = std::map<std::string, std::pair<int64_t, int64_t>>;

  ScriptedAgent() = default;
  ScriptedAgent(std::string node_id, int slots, v1::DeviceKind kind = v1::DEVICE_KIND_CPU)
      : node_id_(std::move(node_id)), slots_(slots), kind_(kind) {}

  bool passes_preflight = true;
  bool gets_ready = true;
  bool stops_as_asked = true;     // stop_requested: saves and leaves
  bool ends_when_stopped = true;  // phase STOPPED: the processes are gone
  bool saves_last_step = true;    // rank 0, before it is COMPLETED

  std::shared_ptr<Disk> disk = std::make_shared<Disk>();

  const std::string& node_id() const { return node_id_; }
  int64_t applied_revision() const { return applied_revision_; }

  v1::AgentHello Hello(int64_t session_number) const {
    v1::AgentHello hello;
    hello.set_node_id(node_id_);
    hello.set_hostname(node_id_ + ".example");
    hello.set_version("test");
    hello.set_session_number(session_number);
    for (int i = 0; i < slots_; ++i) {
      v1::Slot& slot = *hello.add_slots();
      slot.set_index(i);
      slot.set_kind(kind_);
      slot.set_threads(1);
    }
    return hello;
  }

  void Apply(const v1::DesiredState& desired) {
    std::map<Key, v1::ObservedAssignment> next;
    for (const v1::DesiredAssignment& assignment : desired.assignments()) {
      const Key key{assignment.job_id(), assignment.epoch()};
      v1::ObservedAssignment& mine = next[key];
      if (const auto it = known_.find(key); it != known_.end()) mine = it->second;
      mine.set_job_id(key.first);
      mine.set_epoch(key.second);
      train_iters_[key.first] = assignment.spec().training().train_iters();
      Advance(assignment, mine);
    }
    known_ = std::move(next);
    applied_revision_ = desired.revision();
  }

  v1::ObservedState Observe() {
    v1::ObservedState observed;
    observed.set_sequence(++sequence_);
    for (const auto& [key, assignment] : known_) *observed.add_assignments() = assignment;
    return observed;
  }

  const std::map<Key, v1::ObservedAssignment>& known() const { return known_; }
  bool Knows(const Key& key) const { return known_.contains(key); }
  v1::ObservedAssignment& Assignment(const Key& key) { return known_.at(key); }

  v1::ObservedRank* Rank(const Key& key, int rank) {
    const auto it = known_.find(key);
    if (it == known_.end()) return nullptr;
    for (v1::ObservedRank& observed : *it->second.mutable_ranks()) {
      if (observed.rank() == rank) return &observed;
    }
    return nullptr;
  }

  void Exit(const Key& key, int rank, v1::RankOutcome outcome, v1::CauseClass cause = v1::CAUSE_CLASS_UNSPECIFIED,
            const std::string& message = "", bool secondary = false) {
    v1::ObservedRank* observed = Rank(key, rank);
    if (observed == nullptr || observed->state() == v1::RANK_STATE_EXITED) return;
    observed->set_state(v1::RANK_STATE_EXITED);
    observed->set_outcome(outcome);
    if (outcome == v1::RANK_OUTCOME_COMPLETED && rank == 0 && saves_last_step) Commit(key, train_iters_[key.first]);
    if (outcome != v1::RANK_OUTCOME_FAULT) return;
    observed->mutable_cause()->set_cause_class(cause);
    observed->mutable_cause()->set_message(message);
    observed->mutable_cause()->set_secondary(secondary);
    observed->mutable_cause()->set_node_id(node_id_);
  }

  void Commit(const Key& key, int64_t step) {
    v1::Checkpoint& checkpoint = *known_.at(key).add_committed_checkpoints();
    checkpoint.set_step(step);
    checkpoint.set_epoch(key.second);
    checkpoint.set_path("/ckpt/step-" + std::to_string(step) + "-e" + std::to_string(key.second));
    checkpoint.set_state(v1::CHECKPOINT_STATE_COMMITTED);
    (*disk)[key.first] = {step, key.second};
  }

  // The machine was started anew: nothing runs and nothing is known.
  void Forget() { known_.clear(); }

 private:
  void Advance(const v1::DesiredAssignment& assignment, v1::ObservedAssignment& mine) {
    if (assignment.phase() == v1::DESIRED_PHASE_PREFLIGHT) {
      if (passes_preflight) mine.mutable_preflight()->set_ok(true);
      return;
    }
    const Key key{assignment.job_id(), assignment.epoch()};
    for (const v1::RankPlacement& placement : assignment.ranks()) {
      v1::ObservedRank* rank = nullptr;
      for (v1::ObservedRank& observed : *mine.mutable_ranks()) {
        if (observed.rank() == placement.rank()) rank = &observed;
      }
      if (rank == nullptr) {
        rank = mine.add_ranks();
        rank->set_rank(placement.rank());
        rank->set_state(v1::RANK_STATE_STARTING);
        // Nothing is started to be stopped.
        if (assignment.phase() == v1::DESIRED_PHASE_STOPPED) End(*rank, v1::RANK_OUTCOME_FAULT);
      }
      if (placement.rank() == 0) mine.set_rendezvous_address("127.0.0.1:1234");
      if (rank->state() == v1::RANK_STATE_EXITED) continue;
      if (assignment.phase() == v1::DESIRED_PHASE_STOPPED) {
        if (ends_when_stopped) End(*rank, v1::RANK_OUTCOME_FAULT);
      } else if (assignment.stop_requested()) {
        if (stops_as_asked) End(*rank, v1::RANK_OUTCOME_STOPPED);
      } else if (gets_ready && rank->state() == v1::RANK_STATE_STARTING) {
        rank->set_state(v1::RANK_STATE_READY);
        if (const auto saved = disk->find(key.first); saved != disk->end()) {
          rank->set_resumed(true);
          rank->set_start_step(saved->second.first);
          rank->set_resumed_from_epoch(saved->second.second);
          rank->set_step(rank->start_step());
        }
        rank->set_spec_hash("h");
      }
    }
  }

  static void End(v1::ObservedRank& rank, v1::RankOutcome outcome) {
    rank.set_state(v1::RANK_STATE_EXITED);
    rank.set_outcome(outcome);
    if (outcome != v1::RANK_OUTCOME_FAULT) return;
    rank.mutable_cause()->set_cause_class(v1::CAUSE_CLASS_OPERATOR);
    rank.mutable_cause()->set_message("ended as the coordinator asked");
    rank.mutable_cause()->set_secondary(true);
  }

  std::string node_id_;
  int slots_ = 0;
  v1::DeviceKind kind_ = v1::DEVICE_KIND_CPU;
  int64_t applied_revision_ = 0;
  int64_t sequence_ = 0;
  std::map<Key, v1::ObservedAssignment> known_;
  std::map<std::string, int64_t> train_iters_;  // by job
};

}  // namespace slipway::server::core::testing

#endif  // SLIPWAY_SERVER_CORE_TESTING_SCRIPTED_AGENT_H_
