#include <signal.h>

#include "common/logging.h"
#include "spdlog/spdlog.h"
#include "worker/agent/agent.h"
#include "worker/agent/gpu_inventory.h"
#include "worker/agent/options.h"
#include "worker/link/agent_exit.h"

int main(int argc, char** argv) {
  using slipway::worker::agent::Agent;
  slipway::worker::agent::AgentOptions options;
  if (const auto exit = slipway::worker::agent::ParseOptions(argc, argv, options); exit.has_value()) return exit->code;
  if (options.probe_gpus) return slipway::worker::agent::PrintGpus();

  // Before any thread exists, so that all of them leave these signals to the agent's loop.
  sigset_t handled;
  ::sigemptyset(&handled);
  ::sigaddset(&handled, SIGTERM);
  ::sigaddset(&handled, SIGINT);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);

  if (const absl::Status status = slipway::SetUpLogging(
          {.program = "slipway-agent", .stderr_level = options.log_level, .file = options.log_file});
      !status.ok()) {
    spdlog::error("{}", status.ToString());
    return slipway::worker::link::kAgentExitUsage;
  }
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(options);
  if (!agent.ok()) {
    spdlog::error("{}", agent.status().ToString());
    return slipway::worker::agent::ExitCodeOf(agent.status());
  }
  (*agent)->Run();
  return 0;
}
