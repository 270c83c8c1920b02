// Groups of processes over c10d: Gloo on CPU, NCCL (or another registered backend) on CUDA.
//
//   SLIPWAY_ASSIGN_OR_RETURN(auto rendezvous, ProcessRendezvous::Create(...));
//   SLIPWAY_ASSIGN_OR_RETURN(auto factory, BackendGroupFactory::Create(*rendezvous, "train", {.interface = "eth0"}));
//   ParallelGroups groups = MakeParallelGroups(mesh, rank, *factory);
//
// Gloo's and NCCL's rings add in an order fixed by rank and position, so equal inputs give equal bits in every run.
// MakeGroup throws CommError (design: exceptions below engine/train). A group of one rank is a SelfCommunicator.
// The observer's End comes when Wait returns: on CUDA the operation may then still be under way on the device.
// Destroying a Gloo group blocks while one of its operations is under way; after a failure leave the process by _exit.
// Thread-safety: one thread makes groups; each communicator as communicator.h says.
#ifndef SLIPWAY_ENGINE_COMM_BACKEND_COMMUNICATOR_H_
#define SLIPWAY_ENGINE_COMM_BACKEND_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/comm/parallel_groups.h"
#include "engine/comm/rendezvous.h"

namespace slipway::engine::comm {

struct BackendOptions {
  std::string backend = "gloo";       // or "nccl", once its plug-in is registered
  std::string interface;              // Gloo: the network interface ("eth0"); empty: the one of `address`
  std::string address = "127.0.0.1";  // Gloo: this host's address
  at::Device device = at::kCPU;
  absl::Duration timeout = absl::Minutes(10);  // of one operation
  int gloo_threads = 2;                        // of each group
  std::shared_ptr<CommObserver> observer;
};

class BackendGroupFactory : public GroupFactory {
 public:
  // NotFound for an unknown backend; InvalidArgument for an interface or address that is not this machine's.
  // `scope` keeps the keys of several factories over one rendezvous apart ("train", "control").
  static absl::StatusOr<std::unique_ptr<BackendGroupFactory>> Create(const ProcessRendezvous& rendezvous,
                                                                     const std::string& scope,
                                                                     const BackendOptions& options);
};

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_BACKEND_COMMUNICATOR_H_
