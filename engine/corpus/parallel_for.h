// Private to this folder: the same function over many items on several threads.
#ifndef SLIPWAY_ENGINE_CORPUS_PARALLEL_FOR_H_
#define SLIPWAY_ENGINE_CORPUS_PARALLEL_FOR_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace slipway::engine::corpus {

// 0 means one a core.
inline int WorkerCount(int workers) {
  return workers > 0 ? workers : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls body(i) once for each i in [0, count), from up to `workers` threads; returns when all are done.
template <typename Body>
void ParallelFor(int64_t count, int workers, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  std::vector<std::thread> threads;
  const int64_t others = std::min<int64_t>(workers, count) - 1;
  for (int64_t t = 0; t < others; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace slipway::engine::corpus

#endif  // SLIPWAY_ENGINE_CORPUS_PARALLEL_FOR_H_
