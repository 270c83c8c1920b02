// Callbacks of streams that wait for news. Thread-safe. A callback runs on the notifying thread and must not block;
// after Unsubscribe returned it does not run any more (it may still be running on another thread: it owns what it
// uses).
#ifndef SLIPWAY_SERVER_RPC_WAKEUPS_H_
#define SLIPWAY_SERVER_RPC_WAKEUPS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace slipway::server::rpc {

enum class Wake { kNews, kBookmark, kClose };

class Wakeups {
 public:
  using Callback = std::function<void(Wake)>;

  int64_t Subscribe(Callback callback) {
    absl::MutexLock lock(&mutex_);
    callbacks_.emplace(++last_id_, std::move(callback));
    return last_id_;
  }
  void Unsubscribe(int64_t id) {
    absl::MutexLock lock(&mutex_);
    callbacks_.erase(id);
  }
  void Notify(Wake wake) {
    std::vector<Callback> callbacks;
    {
      absl::MutexLock lock(&mutex_);
      callbacks.reserve(callbacks_.size());
      for (const auto& [id, callback] : callbacks_) callbacks.push_back(callback);
    }
    for (const Callback& callback : callbacks) callback(wake);
  }

 private:
  absl::Mutex mutex_;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_WAKEUPS_H_
