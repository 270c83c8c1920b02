// Scripts in testdata/*.txt: commands, and below each the trace that it leaves (events, and what nodes are told).
// SLIPWAY_REWRITE=1 writes the traces anew; commit only differences that you can explain.
//
//   connect <node> <slots>          submit <job> <data parallel size>     pause|cancel|checkpoint <job>
//   resume <job> [<size>]           drain [hurry]                         advance <seconds>
//   sync <node>                     apply | report | beat <node>          settle
//   exit <job> <rank> completed | stopped | fault <CAUSE> [secondary]     commit <job> <step>
//   disconnect | reconnect | forget <node>                                set <node> <switch> on|off
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/core/testing/test_cluster.h"
#include "tests/support/source_dir.h"

namespace slipway::server::core {
namespace {

using testing::ScriptedAgent;
using testing::TestCluster;
using testing::TestSpec;

std::filesystem::path TestData() { return std::filesystem::path(SLIPWAY_SOURCE_DIR) / "server/core/testdata"; }

int Number(const std::string& text) {
  int value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << text;
  return value;
}

class Script {
 public:
  std::string Run(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    cluster_.events.clear();
    status_ = absl::OkStatus();
    EXPECT_TRUE(Command(words)) << "no such command: " << line;
    return Trace();
  }

 private:
  bool Command(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    const std::string& what = words.size() > 1 ? words[1] : verb;
    if (verb == "connect") {
      cluster_.Connect(what, Number(words[2]));
    } else if (verb == "submit") {
      status_ = cluster_.Submit(what, TestSpec(Number(words[2]))).status;
    } else if (verb == "pause") {
      status_ = cluster_.Do(PauseJob{what}).status;
    } else if (verb == "cancel") {
      status_ = cluster_.Do(CancelJob{what}).status;
    } else if (verb == "checkpoint") {
      status_ = cluster_.Do(CheckpointJob{what}).status;
    } else if (verb == "resume") {
      const bool changed = words.size() > 2;
      status_ = cluster_
                    .Do(ResumeJob{.id = what,
                                  .spec = changed ? TestSpec(Number(words[2])) : cluster_.Job(what).spec(),
                                  .changed = changed})
                    .status;
    } else if (verb == "drain") {
      cluster_.Do(Drain{.hurry = what == "hurry"});
    } else if (verb == "advance") {
      cluster_.Advance(absl::Seconds(Number(what)));
    } else if (verb == "settle") {
      cluster_.Settle();
    } else {
      return AgentCommand(words);
    }
    return true;
  }

  bool AgentCommand(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    const std::string& what = words[1];
    if (verb == "sync") {
      cluster_.Sync(what);
    } else if (verb == "apply") {
      cluster_.agents.at(what).Apply(DesiredFor(cluster_.state, what));
    } else if (verb == "report") {
      cluster_.Report(what);
    } else if (verb == "beat") {
      cluster_.Do(AgentHeartbeat{what, cluster_.agents.at(what).applied_revision()});
    } else if (verb == "disconnect") {
      cluster_.Disconnect(what);
    } else if (verb == "reconnect") {
      cluster_.Reconnect(what);
    } else if (verb == "forget") {
      cluster_.agents.at(what).Forget();
    } else if (verb == "set") {
      return Set(cluster_.agents.at(what), words[2], words[3] == "on");
    } else if (verb == "commit") {
      AgentOf(what, 0).Commit(cluster_.Live(what), Number(words[2]));
    } else if (verb == "exit") {
      Exit(words);
    } else {
      return false;
    }
    return true;
  }

  static bool Set(ScriptedAgent& agent, const std::string& name, bool on) {
    if (name == "passes_preflight")
      agent.passes_preflight = on;
    else if (name == "gets_ready")
      agent.gets_ready = on;
    else if (name == "stops_as_asked")
      agent.stops_as_asked = on;
    else if (name == "ends_when_stopped")
      agent.ends_when_stopped = on;
    else
      return false;
    return true;
  }

  void Exit(const std::vector<std::string>& words) {
    const int rank = Number(words[2]);
    ScriptedAgent& agent = AgentOf(words[1], rank);
    const ScriptedAgent::Key key = cluster_.Live(words[1]);
    if (words[3] == "completed") return agent.Exit(key, rank, v1::RANK_OUTCOME_COMPLETED);
    if (words[3] == "stopped") return agent.Exit(key, rank, v1::RANK_OUTCOME_STOPPED);
    v1::CauseClass cause = v1::CAUSE_CLASS_UNSPECIFIED;
    EXPECT_TRUE(v1::CauseClass_Parse("CAUSE_CLASS_" + words[4], &cause)) << words[4];
    agent.Exit(key, rank, v1::RANK_OUTCOME_FAULT, cause, "it happened", words.size() > 5);
  }

  ScriptedAgent& AgentOf(const std::string& job, int rank) {
    const v1::Attempt* attempt = LiveAttempt(std::as_const(cluster_.state.jobs.at(job)));
    return cluster_.agents.at(attempt->placements(rank).node_id());
  }

  std::string Trace() {
    std::string trace;
    if (!status_.ok()) absl::StrAppend(&trace, status_.ToString(), "\n");
    for (const v1::JobEvent& event : cluster_.events) {
      absl::StrAppend(&trace, event.job_id(), " ", StateName(event.state()), " ", event.type());
      if (!event.message().empty()) absl::StrAppend(&trace, ": ", event.message());
      absl::StrAppend(&trace, "\n");
    }
    for (const auto& [node, entry] : cluster_.state.nodes) {
      std::string told;
      const v1::DesiredState desired = DesiredFor(cluster_.state, node);
      for (const v1::DesiredAssignment& assignment : desired.assignments()) {
        absl::StrAppend(&told, " ", assignment.job_id(), "/e", assignment.epoch(), ":",
                        v1::DesiredPhase_Name(assignment.phase()).substr(std::string("DESIRED_PHASE_").size()));
        for (const v1::RankPlacement& rank : assignment.ranks()) absl::StrAppend(&told, " r", rank.rank());
        if (assignment.stop_requested()) absl::StrAppend(&told, " stop");
        if (assignment.checkpoint_requests() > 0) absl::StrAppend(&told, " save", assignment.checkpoint_requests());
      }
      if (told != told_[node]) absl::StrAppend(&trace, "-> ", node, ":", told.empty() ? " nothing" : told, "\n");
      told_[node] = told;
    }
    return trace;
  }

  TestCluster cluster_;
  absl::Status status_;
  std::map<std::string, std::string> told_;
};

// The file with every trace as it is now.
std::string Rerun(const std::string& text) {
  Script script;
  std::string out;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.empty() || line.substr(0, 2) == "  ") continue;
    if (line[0] == '#') {
      absl::StrAppend(&out, out.empty() ? "" : "\n", line, "\n");
      continue;
    }
    absl::StrAppend(&out, line, "\n");
    const std::string trace = script.Run(line);
    for (const std::string& entry : std::vector<std::string>(absl::StrSplit(trace, '\n', absl::SkipEmpty()))) {
      absl::StrAppend(&out, "  ", entry, "\n");
    }
  }
  return out;
}

class ScriptTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ScriptTest, LeavesTheTraceInTheFile) {
  const std::filesystem::path path = TestData() / (GetParam() + ".txt");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  ASSERT_FALSE(text.str().empty()) << path;
  const std::string now = Rerun(text.str());
  if (std::getenv("SLIPWAY_REWRITE") != nullptr) {
    std::ofstream(path) << now;
    return;
  }
  EXPECT_EQ(now, text.str()) << path;
}

INSTANTIATE_TEST_SUITE_P(Scripts, ScriptTest,
                         ::testing::Values("life_of_a_job", "kill_during_pause", "node_lost", "cancel_everywhere",
                                           "two_gangs", "drain", "drain_hurry"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace slipway::server::core
