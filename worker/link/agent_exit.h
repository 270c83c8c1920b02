// What slipway-agent exits with: who started it decides by this whether to start it again.
#ifndef SLIPWAY_WORKER_LINK_AGENT_EXIT_H_
#define SLIPWAY_WORKER_LINK_AGENT_EXIT_H_

namespace slipway::worker::link {

enum AgentExit : int {
  kAgentExitOk = 0,      // a planned end
  kAgentExitError = 1,   // may work the next time
  kAgentExitUsage = 2,   // a wrong command line
  kAgentExitLocked = 3,  // another agent holds the state directory
  kAgentExitUnfit = 4,  // this machine lacks what it was asked to offer: no GPU for --gpus, a program that is not there
};

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_AGENT_EXIT_H_
