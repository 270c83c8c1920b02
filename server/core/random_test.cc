// Random operations on the state machine, with what must always hold checked after each of them. A failure prints the
// seed; SLIPWAY_SEED=<n> runs that one alone, SLIPWAY_SEEDS=<n> more of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "server/core/placement.h"
#include "server/core/testing/test_cluster.h"

namespace slipway::server::core {
namespace {

using testing::ScriptedAgent;
using testing::TestCluster;
using testing::TestSpec;

constexpr int kSeeds = 2000;
constexpr int kOperations = 120;

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed) {
    for (const char* node : {"n1", "n2", "n3"}) cluster_.Connect(node, Pick(3) + 1);
  }

  void Run() {
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      Operate();
      Check();
    }
    Finish();
  }

 private:
  int Pick(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  std::string Node() { return "n" + std::to_string(Pick(3) + 1); }
  std::string AnyJob() { return "j" + std::to_string(Pick(std::max(1, jobs_)) + 1); }
  bool Connected(const std::string& node) {
    return cluster_.state.nodes.at(node).node.state() == v1::NODE_STATE_CONNECTED;
  }

  void Operate() {
    const int dice = Pick(100);
    if (dice < 8 && jobs_ < 12) {
      cluster_.Submit("j" + std::to_string(++jobs_), TestSpec(Pick(3) + 1, Pick(2) + 1));
    } else if (dice < 14) {
      cluster_.Do(PauseJob{AnyJob()});
    } else if (dice < 24) {
      const std::string id = AnyJob();
      const bool change = Pick(2) == 0;
      cluster_.Do(ResumeJob{.id = id, .spec = TestSpec(Pick(2) + 1), .changed = change});
    } else if (dice < 27) {
      cluster_.Do(CancelJob{AnyJob()});
    } else if (dice < 30) {
      cluster_.Do(CheckpointJob{AnyJob()});
    } else if (dice < 65) {
      if (const std::string node = Node(); Connected(node)) SyncPartly(node);
    } else if (dice < 80) {
      ChangeARank();
    } else if (dice < 84) {
      if (const std::string node = Node(); Connected(node)) cluster_.Disconnect(node);
    } else if (dice < 92) {
      if (const std::string node = Node(); !Connected(node)) {
        if (Pick(4) == 0) cluster_.agents[node].Forget();
        wire_[node].clear();
        said_[node] = 0;
        cluster_.Reconnect(node);
      }
    } else {
      KeepAlive();
      cluster_.Advance(absl::Seconds(Pick(400)));
    }
  }

  // The parts of an agent's round, each of which may not have happened yet.
  void SyncPartly(const std::string& node) {
    ScriptedAgent& agent = cluster_.agents[node];
    agent.gets_ready = Pick(4) != 0;
    agent.stops_as_asked = Pick(4) != 0;
    agent.ends_when_stopped = Pick(4) != 0;
    // What it should do reaches it in order, but late.
    std::deque<v1::DesiredState>& wire = wire_[node];
    wire.push_back(DesiredFor(cluster_.state, node));
    while (!wire.empty()) {
      agent.Apply(wire.front());
      wire.pop_front();
      if (Pick(2) == 0) break;
    }
    if (Pick(3) == 0) return;
    Report(node);
    if (Pick(3) == 0) return;
    cluster_.Do(AgentHeartbeat{node, said_[node]});
  }

  // A revision counts as applied only once the report shows what it has led to.
  void Report(const std::string& node) {
    cluster_.Report(node);
    said_[node] = cluster_.agents[node].applied_revision();
  }

  void ChangeARank() {
    const std::string id = AnyJob();
    if (!cluster_.state.jobs.contains(id)) return;
    const ScriptedAgent::Key key = cluster_.Live(id);
    const std::string node = Node();
    ScriptedAgent& agent = cluster_.agents[node];
    if (!agent.Knows(key) || agent.Assignment(key).ranks_size() == 0) return;
    const v1::ObservedRank& rank = agent.Assignment(key).ranks(Pick(agent.Assignment(key).ranks_size()));
    switch (Pick(4)) {
      case 0:
        agent.Exit(key, rank.rank(), v1::RANK_OUTCOME_COMPLETED);
        break;
      case 1:
        agent.Exit(key, rank.rank(), v1::RANK_OUTCOME_FAULT, v1::CAUSE_CLASS_NETWORK, "reset by peer", true);
        break;
      case 2:
        agent.Exit(key, rank.rank(), v1::RANK_OUTCOME_FAULT, static_cast<v1::CauseClass>(1 + Pick(13)), "fault");
        break;
      default:
        agent.Rank(key, rank.rank())->set_step(rank.step() + 1);
        agent.Commit(key, rank.step());
    }
    if (Connected(node) && Pick(2) == 0) Report(node);
  }

  void KeepAlive() {
    for (const auto& [node, agent] : cluster_.agents) {
      if (Pick(8) != 0) cluster_.Do(AgentHeartbeat{node, said_[node]});
    }
  }

  void Check() {
    const ClusterState& state = cluster_.state;
    ASSERT_GE(state.revision, last_revision_);
    last_revision_ = state.revision;
    for (const v1::JobEvent& event : std::exchange(cluster_.events, {})) {
      ASSERT_GT(event.revision(), last_event_);
      last_event_ = event.revision();
    }
    CheckProcesses();
    std::set<std::pair<std::string, int>> used;
    for (const auto& [id, entry] : state.jobs) {
      CheckJob(id, entry);
      if (const v1::Attempt* attempt = LiveAttempt(entry)) {
        for (const v1::RankPlacement& placement : attempt->placements()) {
          ASSERT_TRUE(used.insert({placement.node_id(), placement.slot()}).second) << "a slot is booked twice";
        }
      }
    }
  }

  // A new attempt, or the end of a job, comes only when nothing of the attempt before it runs any more: except on a
  // node whose lease has run out.
  void CheckProcesses() {
    for (const auto& [node, agent] : cluster_.agents) {
      const bool lost = cluster_.state.nodes.at(node).node.state() == v1::NODE_STATE_LOST;
      for (const auto& [key, assignment] : agent.known()) {
        if (lost) excused_.insert({node, key});
        if (excused_.contains({node, key})) continue;
        const bool runs = std::any_of(assignment.ranks().begin(), assignment.ranks().end(),
                                      [](const v1::ObservedRank& r) { return r.state() != v1::RANK_STATE_EXITED; });
        if (runs) {
          ASSERT_EQ(cluster_.Live(key.first), key) << "runs on " << node << " unknown to the state";
        }
      }
    }
  }

  void CheckJob(const std::string& id, const JobEntry& entry) {
    int live = 0;
    int64_t last_epoch = 0;
    for (const v1::Attempt& attempt : entry.job.attempts()) {
      live += attempt.has_end_time() ? 0 : 1;
      ASSERT_GT(attempt.epoch(), last_epoch) << id;
      last_epoch = attempt.epoch();
    }
    ASSERT_LE(live, 1) << id;
    const v1::JobState job_state = entry.job.state();
    if (const auto final = finals_.find(id); final != finals_.end()) {
      ASSERT_EQ(job_state, final->second) << "final is final: " << id;
    }
    if (IsFinal(job_state)) {
      finals_[id] = job_state;
      ASSERT_EQ(live, 0) << id << " is final and something of it may run";
    }
    if (job_state == v1::JOB_STATE_QUEUED || job_state == v1::JOB_STATE_PAUSED) {
      ASSERT_EQ(live, 0) << id;
    }
    if (job_state == v1::JOB_STATE_RUNNING || job_state == v1::JOB_STATE_STARTING) {
      ASSERT_EQ(live, 1) << id;
    }
    ASSERT_EQ(cluster_.state.active.contains(id), live == 1 || entry.preflight == Preflight::kRunning) << id;
  }

  // With agents that do what they are told, every job that can run ends, and holds nothing afterwards.
  void Finish() {
    for (auto& [node, agent] : cluster_.agents) {
      agent.gets_ready = agent.stops_as_asked = agent.ends_when_stopped = true;
      wire_[node].clear();
      cluster_.Reconnect(node);
    }
    for (int round = 0; round < 400 && AnyOpen() && !::testing::Test::HasFailure(); ++round) {
      cluster_.Settle();
      CompleteRunning();
      for (int job = 1; job <= jobs_; ++job) {
        const std::string id = "j" + std::to_string(job);
        cluster_.Do(ResumeJob{.id = id, .spec = cluster_.Job(id).spec()});
      }
      for (const auto& [node, agent] : cluster_.agents) cluster_.Do(AgentHeartbeat{node, agent.applied_revision()});
      cluster_.Advance(absl::Seconds(5));
      Check();
    }
    const int total = CountSlots(cluster_.state, v1::DEVICE_KIND_CPU).total;
    for (const auto& [id, entry] : cluster_.state.jobs) {
      if (WorldSize(entry.job.spec()) <= total) {
        EXPECT_TRUE(IsFinal(entry.job.state())) << id << " is stuck: " << entry.job.ShortDebugString();
      }
    }
    EXPECT_TRUE(HeldSlots(cluster_.state).empty());
  }

  bool AnyOpen() {
    return std::any_of(cluster_.state.jobs.begin(), cluster_.state.jobs.end(),
                       [](const auto& job) { return !IsFinal(job.second.job.state()); });
  }

  void CompleteRunning() {
    for (int job = 1; job <= jobs_; ++job) {
      const std::string id = "j" + std::to_string(job);
      if (cluster_.State(id) != v1::JOB_STATE_RUNNING) continue;
      const ScriptedAgent::Key key = cluster_.Live(id);
      for (auto& [node, agent] : cluster_.agents) {
        if (!agent.Knows(key)) continue;
        std::vector<int> ranks;
        for (const v1::ObservedRank& rank : agent.Assignment(key).ranks()) ranks.push_back(rank.rank());
        for (const int rank : ranks) agent.Exit(key, rank, v1::RANK_OUTCOME_COMPLETED);
      }
    }
  }

  std::mt19937_64 random_;
  TestCluster cluster_;
  int jobs_ = 0;
  int64_t last_revision_ = 0;
  int64_t last_event_ = 0;
  std::map<std::string, v1::JobState> finals_;
  std::map<std::string, std::deque<v1::DesiredState>> wire_;
  std::map<std::string, int64_t> said_;
  std::set<std::pair<std::string, ScriptedAgent::Key>> excused_;
};

TEST(RandomTest, WhatMustAlwaysHoldHolds) {
  const int only = FromEnvironment("SLIPWAY_SEED", -1);
  const int first = only >= 0 ? only : 0;
  const int seeds = only >= 0 ? 1 : FromEnvironment("SLIPWAY_SEEDS", kSeeds);
  for (int seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("SLIPWAY_SEED=" + std::to_string(seed));
    RandomRun(static_cast<uint64_t>(seed)).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace slipway::server::core
