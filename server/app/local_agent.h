// The agent of `slipwayd --local`: found again when it still runs (a coordinator that was killed leaves it and its
// workers alive), started when not, restarted when it dies, ended with the coordinator. It lives in its own session, so
// that a Ctrl-C at the terminal reaches only slipwayd. Not thread-safe.
#ifndef SLIPWAY_SERVER_APP_LOCAL_AGENT_H_
#define SLIPWAY_SERVER_APP_LOCAL_AGENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/subprocess.h"
#include "server/app/flags.h"

namespace slipway::server::app {

struct LocalAgentOptions {
  std::string binary;  // slipway-agent
  std::string state_dir;
  std::string coordinator;  // its address
  LocalNode node;
  std::vector<std::string> allow_roots;
  std::string log_level;
};

struct RunningAgent {
  ProcessIdentity identity;
  std::string coordinator;  // the address that it was started with
};
// The agent that holds the state directory, if one does.
std::optional<RunningAgent> FindRunningAgent(const std::string& state_dir);

class LocalAgent {
 public:
  LocalAgent(LocalAgentOptions options, Clock* clock) : options_(std::move(options)), clock_(clock) {}

  // Adopts or starts it.
  absl::Status Start();
  // Call now and then: starts it again when it has died, at once if it ran well before, then after 1, 2, 4, … seconds.
  // FailedPrecondition when it never came up and said that this machine lacks what it needs: it will not be tried
  // again.
  absl::Status Supervise();
  // SIGTERM, and SIGKILL after `grace`.
  void Stop(absl::Duration grace);

 private:
  bool Running();
  bool Adopt();
  absl::Status Spawn();
  void TakeEnd(absl::Duration now);
  void PutOff(absl::Duration now);  // the next start

  const LocalAgentOptions options_;
  Clock* const clock_;
  std::optional<Subprocess> child_;
  std::optional<ProcessIdentity> adopted_;
  absl::Duration started_ = -absl::InfiniteDuration();
  absl::Duration next_start_ = -absl::InfiniteDuration();
  absl::Duration backoff_;
  bool ran_well_ = false;  // at some time
  bool unfit_ = false;
};

// The arguments that the agent is started with.
std::vector<std::string> AgentArguments(const LocalAgentOptions& options, int cores);

}  // namespace slipway::server::app

#endif  // SLIPWAY_SERVER_APP_LOCAL_AGENT_H_
