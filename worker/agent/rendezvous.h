// The listening socket on which rank 0 serves the rendezvous store: bound here, so that the address is known before the
// worker runs and no port is guessed. Thread-safe: no state.
#ifndef SLIPWAY_WORKER_AGENT_RENDEZVOUS_H_
#define SLIPWAY_WORKER_AGENT_RENDEZVOUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace slipway::worker::agent {

struct Rendezvous {
  // Close it as soon as the worker has its copy: while it stays open and nobody serves it, clients hang.
  UniqueFd listener;
  std::string address;  // "192.168.0.7:41234", "[fd00::7]:41234"
};

// `ip` is a numeric address of this machine.
absl::StatusOr<Rendezvous> BindRendezvous(const std::string& ip);

// This machine's address on the way to the coordinator ("host:port", "[ipv6]:port", or a gRPC target with "dns:///" or
// "ipv4:" in front); 127.0.0.1 for a "unix:" target.
absl::StatusOr<std::string> AddressFacing(const std::string& target);

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_RENDEZVOUS_H_
