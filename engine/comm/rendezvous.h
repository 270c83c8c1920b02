// Where the processes of one attempt find each other: a key-value store served by rank 0.
//
// The agent of rank 0 binds the port and passes the open socket, so that no other process can take the port in between;
// the keys of the attempt live under a prefix (job, epoch, nonce), so that a leftover process cannot join.
// Connecting runs under a watchdog of its own: a socket that listens and is not served makes a client hang past all of
// its timeouts. After DeadlineExceeded a thread may still hang in the connection; the process is expected to end.
// Thread-safety: Create from one thread; the store is thread-safe.
#ifndef SLIPWAY_ENGINE_COMM_RENDEZVOUS_H_
#define SLIPWAY_ENGINE_COMM_RENDEZVOUS_H_

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slipway::engine::comm {

struct RendezvousOptions {
  std::string host = "127.0.0.1";  // of rank 0, as the other ranks reach it
  uint16_t port = 0;               // may be 0 for rank 0 with a socket
  int listen_fd = -1;              // rank 0: a bound socket, owned from here on; -1: bind `port`
  int rank = 0;
  int world = 1;
  std::string prefix;  // "job-7/3/9f2c": job, epoch, nonce
  absl::Duration timeout = absl::Minutes(5);
};

class ProcessRendezvous {
 public:
  // Returns when all ranks are there. DeadlineExceeded naming the ranks that are missing; Unavailable when rank 0
  // cannot be reached or went away; InvalidArgument for bad options.
  static absl::StatusOr<std::unique_ptr<ProcessRendezvous>> Create(const RendezvousOptions& options);

  int rank() const { return options_.rank; }
  int world() const { return options_.world; }
  const RendezvousOptions& options() const { return options_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

 private:
  ProcessRendezvous(RendezvousOptions options, c10::intrusive_ptr<c10d::Store> store);

  RendezvousOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;  // under the prefix
};

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_RENDEZVOUS_H_
