// Ranks that are threads of one process, for tests of everything that is parallel: no sockets, no timing.
//
//   RunRanks(4, [](int rank, GroupFactory& factory) {
//     ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
//     ...
//   });
//
// An operation leaves a copy of its input and goes on; Wait() blocks until all ranks have done so and computes this
// rank's output from the copies in rank order, so results have the same bits in every run and on every rank (sums of
// half types are made in fp32). What ranks give is compared: another operation, size or type is an error that names
// both. A rank that throws aborts the world: the others' waits throw CommError, as a broken connection would. CPU
// tensors only. Thread-safety: ThreadWorld is thread-safe; a factory and its communicators belong to their rank.
#ifndef SLIPWAY_ENGINE_COMM_THREAD_COMMUNICATOR_H_
#define SLIPWAY_ENGINE_COMM_THREAD_COMMUNICATOR_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "engine/comm/parallel_groups.h"

namespace slipway::engine::comm {

struct ThreadWorldOptions {
  absl::Duration timeout = absl::Minutes(2);  // of one Wait
  std::function<std::shared_ptr<CommObserver>(int rank)> observer;
};

// Runs `body` on `world` threads with one ATen thread each and waits for all of them. The exception of the rank that
// threw first is thrown again.
void RunRanks(int world, const std::function<void(int rank, GroupFactory& factory)>& body,
              const ThreadWorldOptions& options = {});

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_THREAD_COMMUNICATOR_H_
